"""The only code that writes markup: a tree of elements whose text is escaped when it is written.

There is no way to put a string of markup into the tree: a string is text, always. Elements and attributes are those in
the lists below, none of which runs a script or loads anything; the only addresses are data of images and recordings,
and links to a place of the page itself. The page's script is a constant of mmspec that the policy allows by its hash;
what it works on are attributes and texts, which it never turns into markup.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Final

# Elements without content, and the others.
_VOID: Final = frozenset({"img", "input", "meta", "wbr"})
_ELEMENTS: Final = _VOID | {
    "html", "head", "title", "body", "header", "nav", "main", "section", "h1", "h2", "h3", "p", "div", "span", "small",
    "b", "i", "a", "label", "button", "select", "option", "output", "details", "summary", "dialog", "canvas",
    "table", "caption", "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd", "figure", "figcaption", "audio", "svg",
    "g", "path", "rect", "circle", "polyline", "text",
}  # fmt: skip
_ATTRIBUTES: Final = frozenset({
    "lang", "charset", "name", "content", "http-equiv", "class", "id", "for", "type", "checked", "title", "alt",
    "aria-label", "role", "controls", "preload", "viewBox", "preserveAspectRatio", "x", "y", "width", "height", "cx",
    "cy", "r", "d", "points", "transform", "text-anchor", "href", "scope", "tabindex", "value", "min", "max", "step",
    "selected", "hidden", "open", "aria-live", "aria-labelledby", "aria-describedby", "aria-hidden", "xmlns",
})  # fmt: skip
_DATA: Final = re.compile(r"data-[a-z-]+")
_HERE: Final = re.compile(r"[#?]")  # how an address within the page starts
_MEDIA: Final = {"image/png": "img", "audio/wav": "audio"}


class Element:
    """An element with its attributes and children.

    Args:
        tag: Its name, one of the list above.
        children: Elements, texts, or iterables of them; None is left out.
        attributes: Texts and numbers; a trailing underscore is dropped and others become hyphens, so that `class_` and
            `aria_label` can be written. None is left out.

    Raises:
        ValueError: For an element or attribute that is not in the lists, and a link that leads out of the page.
    """

    def __init__(self, tag: str, *children: Children, **attributes: str | int | float | None) -> None:
        names = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        known = {name for name in names if name in _ATTRIBUTES or _DATA.fullmatch(name)}
        if tag not in _ELEMENTS or names.keys() != known or not _HERE.match(str(names.get("href", "#"))):
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


class _Script(Element):
    """The page's script, which is a constant of mmspec; in CDATA, which HTML reads as comments and XML as raw text."""

    def __init__(self, script: str) -> None:
        self.tag, self.attributes, self.children = "script", {}, []
        if "]]>" in script or "</" in script or "<!--" in script:
            raise ValueError("the script has characters that end it early")
        self.script = f"//<![CDATA[\n{script}\n//]]>"

    def _parts(self) -> Iterator[str]:
        yield f"<script>{self.script}</script>"


def image(png: bytes, description: str, class_: str | None = None, title: str | None = None) -> Element:
    """A PNG image inside the page."""
    return _Embedded("image/png", png, class_=class_, alt=description, title=title)


def recording(wav: bytes, description: str) -> Element:
    """A player of a WAV file inside the page."""
    return _Embedded("audio/wav", wav, controls="controls", preload="none", aria_label=description)


def document(title: str, sheet: str, body: Iterable[Children], script: str = "") -> str:
    """A page as HTML that is well-formed XML too.

    Its policy forbids forms, frames, connections and all addresses; its own style sheet and script are allowed by their
    hashes, and nothing else runs.

    Args:
        title: Of the page.
        sheet: The style sheet, a constant.
        body: The content.
        script: The script, a constant; "" for none. It runs after the body has been read.
    """
    code = _Script(script) if script else None
    scripts = f"'sha256-{_digest(code.script)}'" if code else "'none'"
    policy = (
        f"default-src 'none'; style-src 'sha256-{_digest(sheet)}'; script-src {scripts}; img-src data:; "
        "media-src data:; base-uri 'none'; form-action 'none'"
    )
    head = Element(
        "head",
        Element("meta", charset="utf-8"),
        Element("meta", http_equiv="Content-Security-Policy", content=policy),
        Element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        Element("title", title),
        _Style(sheet),
    )
    return f"<!DOCTYPE html>\n{Element('html', head, Element('body', body, code), lang='en')}\n"


def style(sheet: str) -> Element:
    """A style sheet, a constant, inside a drawing."""
    return _Style(sheet)


def drawing(svg: Element) -> str:
    """A file with an SVG, which holds no script and no address."""
    return f'<?xml version="1.0" encoding="utf-8"?>\n{svg}\n'


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


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
