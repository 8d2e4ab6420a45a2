"""A ClassAd expression as an option: refused at its line if it is none."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator


def _expression(text: str) -> str:
    try:
        import classad2
    except ImportError:  # checked again, in the child, where the bindings are needed
        return text
    try:
        classad2.ExprTree(text)
    except classad2.ClassAdException:
        raise ValueError(f'`{text[:60]}` is not a ClassAd expression: write, say, `Owner != "test"`') from None
    return text


Expression = Annotated[str, AfterValidator(_expression)]
