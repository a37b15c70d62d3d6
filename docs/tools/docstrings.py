"""Docstrings as the site shows them; mkdocstrings calls the extension."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))

from converted import markdown  # noqa: E402


class Docstrings(griffe.Extension):
    """Every docstring of the package in Markdown, before its fields are read."""

    def on_instance(self, *, obj: griffe.Object, **settings: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
