r"""Models as equations: a short notation, ``h^{(1)} = f(x) + ε``, made MathML, which browsers draw by themselves.

Single letters are variables, other words stand for themselves; ``_`` and ``^`` set one thing, or what stands in braces,
below or above. The equations are those of the docstrings of ``ppl_dgp.models``, at the settings of a run.
"""

from __future__ import annotations

import re
from html import escape

from ppl_dgp.cli.settings import Settings
from ppl_dgp.cli.stacks import STACK

#: the formula of each kernel; r² = Σ_d (x_d − x′_d)² / ℓ_d²
KERNEL_FORMULAS = {
    "rbf": "σ^2 exp(−r^2/2)",
    "matern12": "σ^2 exp(−r)",
    "matern32": "σ^2 (1 + √3 r) exp(−√3 r)",
    "matern52": "σ^2 (1 + √5 r + 5r^2/3) exp(−√5 r)",
    "rational-quadratic": "σ^2 (1 + r^2/2α)^{−α}",
    "periodic": "σ^2 exp(−2 Σ_d sin^2(π(x_d − x′_d)/p_d) / ℓ_d^2)",
    "linear": "Σ_d σ_d^2 x_d x′_d",
    "constant": "σ^2",
}
#: of y given the last function f, or what takes its place
LIKELIHOOD_FORMULAS = {
    "gaussian": "y_n = {f} + ε_n, ε_n ∼ N(0, s^2)",
    "student-t": "y_n = {f} + ε_n, ε_n ∼ s t_ν",
    "laplace": "y_n = {f} + ε_n, ε_n ∼ Laplace(0, s)",
    "heteroscedastic": "y_n = {f} + ε_n, log var(ε_n) = g(x_n)",
    "poisson": "y_n ∼ Poisson(exp({f}))",
    "negative-binomial": "y_n ∼ NegativeBinomial(exp({f}), r)",
    "gamma": "y_n ∼ Gamma(mean exp({f}))",
    "beta": "y_n ∼ Beta(mean Φ({f}))",
    "bernoulli": "p(y_n = 1) = Φ({f})",
    "bernoulli-logit": "p(y_n = 1) = 1/(1 + exp(−{f}))",
    "softmax": "p(y_n = c) ∝ exp({f}_c)",
    "robust-max": "y_n = argmax_c {f}_c, but for some slips",
    "ordinal": "p(y_n ≤ c) = Φ((b_c − {f})/s)",
}
_TOKEN = re.compile(r"\s*([A-Za-z]+′?|[Α-Ωα-ωℓ]|[0-9]+(?:\.[0-9]+)?|\S)")
#: words that are functions, and signs that stand between things or around them
_FUNCTIONS = ("exp", "log", "sin", "var", "argmax", "mean")
_SIGNS = "=+−-∼∝·,;:()[]|/∘≤<>…√Σ"


def model_equations(settings: Settings) -> list[str]:
    """The model's equations in the notation, top down: functions, observations, kernels."""
    model, last = settings.model, "f(x_n)"
    lines = {
        "gp": ["f ∼ GP(0, k)"],
        "sparse-gp": ["f ∼ GP(0, k)"],
        "binned-counts-gp": ["f ∼ GP(0, k)", "y_n ∼ Poisson(∫_{bin n} exp(f(x)) dx)"],
        "gp-with-derivatives": ["f ∼ GP(0, k)", "y_n = f(x_n) + ε_n or y_n = ∂f(x_n)/∂x_d + ε_n, ε_n ∼ N(0, s^2)"],
        "additive-gp": ["f_d ∼ GP(0, k_d), d = 1, …, D"],
        "multi-output-gp": [f"g_q ∼ GP(0, k_q), q = 1, …, {settings.latent}", "y_np = Σ_q W_pq g_q(x_n) + ε_np"],
        "convolved-gp": [f"g_q ∼ GP(0, k_q), q = 1, …, {settings.latent}", "y_np = Σ_q (G_pq ∗ g_q)(x_n) + ε_np"],
        "gplvm": [f"x_n ∼ N(0, I), x_n of {settings.latent} dimensions", "f_p ∼ GP(0, k)", "y_np = f_p(x_n) + ε_np"],
        "gpssm": [
            "f ∼ GP(x, k), x_0 ∼ N(m, S)",
            "x_t = f(x_{t−1}, u_t) + ε_t, ε_t ∼ N(0, Q)",
            ("y_t = g(x_t)" if settings.emission == "gp" else "y_t = C x_t + d") + " + e_t, e_t ∼ N(0, R)",
        ],
    }.get(model)  # fmt: skip
    if model == "additive-gp":
        last = "Σ_d f_d(x_nd)"
    if model == "deep-gp":
        depth = len(settings.widths)
        lines = ["h_n^{(0)} = x_n"]
        for layer, width in enumerate(settings.widths, start=1):
            lines.append(f"f^{{({layer})}} ∼ GP(m_{layer}, k_{layer}), {width} output{'s' * (width > 1)}")
            noisy = f"f^{{({layer})}}(h_n^{{({layer - 1})}}) + ε_n^{{({layer})}}"
            lines.append(f"h_n^{{({layer})}} = {noisy}, ε_n^{{({layer})}} ∼ N(0, s_{layer}^2)")
        lines.append(f"f ∼ GP(0, k_{depth + 1})")
        last = f"f(h_n^{{({depth})}})"
    if model == STACK:
        lines, last = [f"h_n = {' ∘ '.join(reversed((settings.blocks or '').split(',')))} of x_n"], "h_n"
    if lines is None:  # images
        lines = ["g ∼ GP(0, k)", "f(x) = Σ_p w_p g(x^{[p]}), x^{[p]} the patches of an image"]
    if model not in (
        "binned-counts-gp",
        "gp-with-derivatives",
        "multi-output-gp",
        "convolved-gp",
        "gplvm",
        "gpssm",
    ):
        likelihood = (
            "robust-max" if settings.of_classes and settings.likelihood == "gaussian" else settings.likelihood
        )
        lines = [*lines, LIKELIHOOD_FORMULAS[likelihood].format(f=last)]
    return lines if model == "convolved-gp" else [*lines, *kernel_equations(settings.kernel)]


def kernel_equations(kernel: str) -> list[str]:
    """The kernel that is named, with r² where it is needed; sums and products term by term."""
    names = [name.strip() for name in re.split(r"[+*]", kernel)]
    if len(names) == 1:
        lines = [f"k(x, x′) = {KERNEL_FORMULAS[names[0]]}"]
    else:
        signs = re.findall(r"[+*]", kernel)
        joined = "k_{1}" + "".join(
            f" {'+' if s == '+' else '·'} k_{{{i}}}" for i, s in enumerate(signs, start=2)
        )
        lines = [f"k = {joined}"]
        lines += [f"k_{{{i}}}(x, x′) = {KERNEL_FORMULAS[name]}" for i, name in enumerate(names, start=1)]
    if any(" r" in f" {KERNEL_FORMULAS[name]}".replace("(−r", " r").replace("√3 r", " r") for name in names):
        lines.append("r^2 = Σ_d (x_d − x′_d)^2 / ℓ_d^2")
    return lines


def mathml(equation: str) -> str:
    """An equation as MathML, in the form of one that stands alone."""
    tokens = _TOKEN.findall(equation)
    parts = []
    while tokens:
        parts.append(_scripted(tokens))
    return f'<math displaystyle="true"><mrow>{"".join(parts)}</mrow></math>'


def _scripted(tokens: list[str]) -> str:
    """The next thing, with what stands below and above it."""
    base = _thing(tokens)
    scripts: dict[str, str] = {}
    while tokens and tokens[0] in "_^" and tokens[0] not in scripts:
        sign = tokens.pop(0)
        if tokens and len(tokens[0]) == 2 and tokens[0].isalpha() and tokens[0].isascii():
            # two indices
            scripts[sign] = "<mrow>" + "".join(f"<mi>{letter}</mi>" for letter in tokens.pop(0)) + "</mrow>"
        else:
            scripts[sign] = _thing(tokens) if tokens else "<mrow></mrow>"
    if not scripts:
        return base
    if len(scripts) == 2:
        return f"<msubsup>{base}{scripts['_']}{scripts['^']}</msubsup>"
    tag = "msub" if "_" in scripts else "msup"
    return f"<{tag}>{base}{next(iter(scripts.values()))}</{tag}>"


def _thing(tokens: list[str]) -> str:
    token = tokens.pop(0)
    if token == "{":
        parts = []
        while tokens and tokens[0] != "}":
            parts.append(_scripted(tokens))
        del tokens[:1]
        return f"<mrow>{''.join(parts)}</mrow>"
    if token[0].isdigit():
        return f"<mn>{token}</mn>"
    if token in _SIGNS:
        return f'<mo stretchy="false">{escape(token)}</mo>'
    if len(token) > 1 and token.islower() and token.isalpha() and token not in _FUNCTIONS:
        return f"<mtext>&#160;{token}&#160;</mtext>"
    slanted = ' style="font-style: italic"' if token.endswith("′") else ""  # as single letters are
    return f"<mi{slanted}>{escape(token)}</mi>"
