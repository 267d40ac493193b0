"""Folders of the user's cache, for what a build for CUDA keeps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from relay_wgrad.building import private_folder as folders

from .toolchain import ToolchainError


def private_folder(name: str, environ: Mapping[str, str]) -> Path:
    """`relay_wgrad.building.private_folder`'s; raises ToolchainError where that refuses."""
    try:
        return folders.private_folder(name, environ)
    except folders.FolderError as error:
        raise ToolchainError(str(error)) from error
