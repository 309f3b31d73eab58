"""The report that people look at: one self-contained HTML page, made from records and never from a device.

`content` turns records into plain data, `page.html.j2` with `page.css` and `page.js` turns these into the page, and
`pictures` draws. The template escapes each value; what the script renders later goes into the page as text, never as
markup, and the page's own policy lets no other script run and nothing be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Final

from gridpact.conformance.evidence import Record
from gridpact.conformance.page.content import describe
from gridpact.conformance.page.pictures import Picture

__all__ = ["build", "digest"]

_HERE: Final = files("gridpact.conformance.page")


def build(records: Sequence[Record], pictures: Sequence[Picture] = ()) -> bytes:
    """Make the page. The same records and pictures make the same bytes.

    Parameters
    ----------
    records
        Each case of each subject once (`evidence.latest`), one record at least.
    pictures
        Shown in this order.
    """
    from jinja2 import Environment
    from markupsafe import Markup

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    template = environment.from_string(_HERE.joinpath("page.html.j2").read_text())
    script = _HERE.joinpath("page.js").read_text()
    told = describe(records)
    text: str = template.render(
        told=told,
        pictures=[(picture, Markup(picture.svg)) for picture in pictures],
        style=Markup(_HERE.joinpath("page.css").read_text()),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        embedded=Markup(_script_json(told.embedded)),
        digest=digest(records),
    )
    return text.encode("utf-8", "replace")


def digest(records: Sequence[Record]) -> str:
    """Give what tells records apart from others, as it stands in the page that was made from them."""
    lines = sorted(record.line() for record in records)
    return hashlib.sha256(b"".join(lines)).hexdigest()


def _script_json(value: object) -> str:
    """Give JSON that can stand in a script element: nothing in it can end the element or begin a comment."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
