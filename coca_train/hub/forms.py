"""Which form an export takes: a class of transformers where one computes the same, else modelling files of our own."""

from typing import Any

from coca_train.hub import families, own
from coca_train.hub.architecture import Architecture
from coca_train.hub.options import Form
from coca_train.positions.hugging_face import NotTheSame
from coca_train.runtime.errors import UserError


def choose(architecture: Architecture, form: Form, family: str = "") -> dict[str, Any]:
    """The config.json of the export. family: which native class is preferred where several do.

    Raises UserError E-IOP-15 when the form that is asked for, or every form, would compute something else.
    """
    reasons = []
    if form != "own":
        try:
            return families.config(architecture, family if form in ("auto", "native") else form)
        except NotTheSame as error:
            reasons.append(str(error))
    if form in ("auto", "own"):
        try:
            return own.config(architecture)
        except NotTheSame as error:
            reasons.append(str(error))
    raise UserError(
        f"E-IOP-15 form={form}: this would not compute what the run computes: {'; '.join(reasons)}. "
        f"Fix: {'form=own' if form not in ('auto', 'own') else 'keep the run directory; it cannot be exported yet'}"
    )
