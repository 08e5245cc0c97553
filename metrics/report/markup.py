"""The only code that writes markup: a tree of elements whose text is escaped when it is written.

There is no way to put a string of markup into the tree: a string is text, always. Elements and attributes are those in
the lists below, none of which runs a script or loads anything; the only addresses are data of images and recordings.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

# Elements without content, and the others.
_VOID: Final = frozenset({"img", "input", "meta", "wbr"})
_ELEMENTS: Final = _VOID | {
    "html", "head", "title", "body", "header", "h1", "h2", "h3", "p", "div", "span", "small", "b", "i", "label",
    "table", "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd", "figure", "figcaption", "audio", "svg", "g", "path",
    "rect", "circle", "polyline", "text",
}  # fmt: skip
_ATTRIBUTES: Final = frozenset({
    "lang", "charset", "name", "content", "http-equiv", "class", "id", "for", "type", "checked", "title", "alt",
    "aria-label", "role", "controls", "preload", "viewBox", "preserveAspectRatio", "x", "y", "width", "height", "cx",
    "cy", "r", "d", "points", "transform", "text-anchor",
})  # fmt: skip
_MEDIA: Final = {"image/png": "img", "audio/wav": "audio"}


class Element:
    """An element with its attributes and children.

    Args:
        tag: Its name, one of the list above.
        children: Elements, texts, or iterables of them; None is left out.
        attributes: Texts and numbers; a trailing underscore is dropped and others become hyphens, so that `class_` and
            `aria_label` can be written. None is left out.

    Raises:
        ValueError: For an element or attribute that is not in the lists.
    """

    def __init__(self, tag: str, *children: Children, **attributes: str | int | float | None) -> None:
        names = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        if tag not in _ELEMENTS or not names.keys() <= _ATTRIBUTES:
            raise ValueError(f"the report has no element {tag!r} with attributes {sorted(names)}")
        self.tag = tag
        self.attributes = {name: str(value) for name, value in names.items() if value is not None}
        self.children = list(_flat(children))
        if self.children and tag in _VOID:
            raise ValueError(f"element {tag!r} has no content")

    def __str__(self) -> str:
        return "".join(self._parts())

    def _parts(self) -> Iterator[str]:
        inside = "".join(f' {name}="{_escaped(value)}"' for name, value in self.attributes.items())
        if self.tag in _VOID:
            yield f"<{self.tag}{inside}/>"
            return
        yield f"<{self.tag}{inside}>"
        for child in self.children:
            if isinstance(child, Element):
                yield from child._parts()
            else:
                yield _escaped(child)
        yield f"</{self.tag}>"


Children = Element | str | None | Iterable["Children"]


class _Embedded(Element):
    """An image or a recording inside the page."""

    def __init__(self, kind: str, data: bytes, **attributes: str | None) -> None:
        super().__init__(_MEDIA[kind], **attributes)
        self.attributes["src"] = f"data:{kind};base64,{base64.b64encode(data).decode()}"


class _Style(Element):
    """The style sheet, which is a constant of mmspec; it is raw text to a browser and must not need escaping."""

    def __init__(self, sheet: str) -> None:
        self.tag, self.attributes, self.children = "style", {}, []
        if _escaped(sheet).replace("&quot;", '"') != sheet:
            raise ValueError("the style sheet has characters that HTML and XML read differently")
        self.sheet = sheet

    def _parts(self) -> Iterator[str]:
        yield f"<style>{self.sheet}</style>"


def image(png: bytes, description: str, class_: str | None = None, title: str | None = None) -> Element:
    """A PNG image inside the page."""
    return _Embedded("image/png", png, class_=class_, alt=description, title=title)


def recording(wav: bytes, description: str) -> Element:
    """A player of a WAV file inside the page."""
    return _Embedded("audio/wav", wav, controls="controls", preload="none", aria_label=description)


def document(title: str, sheet: str, body: Iterable[Children]) -> str:
    """A page as HTML that is well-formed XML too.

    Its policy forbids scripts, forms, frames and all addresses; its own style sheet is allowed by its hash.

    Args:
        title: Of the page.
        sheet: The style sheet, a constant.
        body: The content.
    """
    digest = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; media-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    head = Element(
        "head",
        Element("meta", charset="utf-8"),
        Element("meta", http_equiv="Content-Security-Policy", content=policy),
        Element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        Element("title", title),
        _Style(sheet),
    )
    return f"<!DOCTYPE html>\n{Element('html', head, Element('body', body), lang='en')}\n"


_ESCAPES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})


def _escaped(text: str) -> str:
    """Text for an element or a quoted attribute; characters that XML has no place for are replaced."""
    return "".join(c if _is_character(c) else "\N{REPLACEMENT CHARACTER}" for c in text).translate(_ESCAPES)


def _is_character(c: str) -> bool:
    return c in "\t\n" or "\x20" <= c <= "\x7e" or "\xa0" <= c < "\ud800" or c >= "\ue000" and c not in "\ufffe\uffff"


def _flat(children: Iterable[Children]) -> Iterator[Element | str]:
    for child in children:
        if isinstance(child, (Element, str)):
            yield child
        elif child is not None:
            yield from _flat(child)
