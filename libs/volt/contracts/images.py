"""References to container images, by the grammar that Docker and the registries share.

Source: the `reference` package of github.com/distribution/reference:

    reference := name [":" tag] ["@" digest]
    name      := [host [":" port] "/"] component ("/" component)*
"""

import re

IMAGE_NAME_CHARS_MAX = 255

_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_HOST = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])"
_COMPONENT = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_DIGEST = r"[A-Za-z][A-Za-z0-9]*(?:[+._-][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}"
_REFERENCE = re.compile(
    rf"(?P<name>(?:{_HOST}(?::[0-9]+)?/)?{_COMPONENT}(?:/{_COMPONENT})*)(?::(?P<tag>{_TAG}))?(?:@(?P<digest>{_DIGEST}))?"
)


def is_image_reference(text: str) -> bool:
    """Whether `text` names an image, such as `registry.local:5000/team/app:1.2@sha256:…`."""
    match = _REFERENCE.fullmatch(text)
    return match is not None and len(match["name"]) <= IMAGE_NAME_CHARS_MAX
