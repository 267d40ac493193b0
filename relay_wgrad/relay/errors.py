"""What a Relay text can be refused with."""

from __future__ import annotations

_LONGEST = 300  # characters of a message, which may quote a name of any length
_WINDOW = 80  # characters of a long line that the excerpt shows


class RelayTextError(ValueError):
    """A Relay text that can't be read, or a program that has no text.

    `problem` says what is wrong; `line` and `column` count from 1 and are 0 when there is no place
    (a module that is printed); `excerpt` is the line, cut to a window, with a caret below.
    """

    def __init__(
        self, problem: str, line: int = 0, column: int = 0, excerpt: str = "", source: str = ""
    ) -> None:
        place = f"{source}:{line}:{column}: " if line else ""
        super().__init__(f"{place}{problem}" + (f"\n{excerpt}" if excerpt else ""))
        self.problem = problem
        self.line = line
        self.column = column
        self.excerpt = excerpt


class UnsupportedConstructError(RelayTextError):
    """Valid Relay that is left out on purpose; `construct` is its name."""

    def __init__(
        self,
        construct: str,
        problem: str,
        line: int = 0,
        column: int = 0,
        excerpt: str = "",
        source: str = "",
    ) -> None:
        super().__init__(problem, line, column, excerpt, source)
        self.construct = construct


class Complaint(Exception):  # noqa: N818 - it never leaves the package
    """A problem at an offset of the text; `located` makes it one of the errors above."""

    def __init__(self, offset: int, problem: str, construct: str = "") -> None:
        super().__init__(problem)
        self.offset = offset
        self.problem = problem if len(problem) < _LONGEST else problem[:_LONGEST] + "..."
        self.construct = construct

    def located(self, text: str, source: str) -> RelayTextError:
        """The error that tells line, column and excerpt."""
        offset = min(self.offset, len(text))
        start = text.rfind("\n", 0, offset) + 1
        end = text.find("\n", offset)
        end = len(text) if end < 0 else end
        line, column = text.count("\n", 0, offset) + 1, offset - start + 1
        left = max(start, offset - _WINDOW // 2)
        shown = text[left : min(end, left + _WINDOW)]
        # One column per character, whatever it is: a tab would move the caret.
        shown = "".join(c if c.isprintable() else " " for c in shown)
        head = "..." if left > start else ""
        excerpt = f"  {head}{shown}\n  {' ' * (len(head) + offset - left)}^"
        if self.construct:
            return UnsupportedConstructError(
                self.construct, self.problem, line, column, excerpt, source
            )
        return RelayTextError(self.problem, line, column, excerpt, source)
