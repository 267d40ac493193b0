"""What pyproject.toml cannot say: the README as a package index shows it, and the project's URLs.

In the repository README's links are relative, as its hosts want them.  On an index such a link
leads nowhere: with `HOME` they become absolute, without it their text stays and pictures go.
"""

import re
from pathlib import Path

from setuptools import setup

HOME = ""  # the repository's address (https://…), once it has a public one
_LINK = re.compile(
    r"(?P<code>^```.*?^```|`[^`\n]*`)|(?P<picture>!?)\[(?P<text>[^]]*)\]\((?!https?:)(?P<path>[^)]*)\)",
    re.MULTILINE | re.DOTALL,
)


def on_an_index(readme: str, home: str) -> str:
    """Text without relative links; they lead into `home`, or where that is "", are left out."""

    def instead(link: re.Match[str]) -> str:
        if link["code"]:
            return link[0]
        if home:
            kind = "raw" if link["picture"] else "blob"
            return f"{link['picture']}[{link['text']}]({home}/{kind}/main/{link['path']})"
        return "" if link["picture"] else link["text"]

    return _LINK.sub(instead, readme)


def urls(home: str) -> dict[str, str]:
    if not home:
        return {}
    return {
        "Source": home,
        "Documentation": f"{home}/tree/main/docs",
        "Changelog": f"{home}/blob/main/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }


if __name__ == "__main__":
    readme = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    setup(
        long_description=on_an_index(readme, HOME),
        long_description_content_type="text/markdown",
        project_urls=urls(HOME),
    )
