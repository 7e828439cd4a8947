"""Prompt templates."""

from hacpo_jax.errors import UserError
from hacpo_jax.tasks.examples import Example

PLACEHOLDER = "{prompt}"


def check_template(template: str, field: str = "template") -> None:
    """Raises `UserError` about `field` if `template` has no place for the problem."""
    if PLACEHOLDER not in template:
        raise UserError(field, template, f"a prompt template must contain {PLACEHOLDER}")


def render(template: str, example: Example) -> str:
    r"""Puts the problem's text into a template.

    `{prompt}` is the only placeholder and nothing else in braces has a meaning, neither in the
    template nor in the problem, so that `\boxed{}` can stand in both.

    Args:
      template: text with `{prompt}` in it.
      example: the problem.

    Returns:
      The template with every `{prompt}` replaced.

    Raises:
      UserError: the template has no `{prompt}`.
    """
    check_template(template)
    return template.replace(PLACEHOLDER, example.prompt)
