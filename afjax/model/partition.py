"""Selects the leaves to train by rules over paths, and splits trees accordingly.

Gradients are computed with respect to the trained tree only, and the optimizer never sees the frozen tree. Frozen
leaves therefore have no gradients or optimizer state, and stay bit-identical.
"""

import dataclasses
import re
from collections.abc import Sequence

import jax

from afjax.config.heads import HeadConfig
from afjax.display.words import counted
from afjax.errors import UserError
from afjax.trees import Tree, flatten, select
from afjax.trunk.layers import num_layers


@dataclasses.dataclass(frozen=True)
class Rule:
    """Trains or freezes all leaves whose full path matches ``pattern``.

    Attributes:
      pattern: A regular expression for paths such as ``trunk/layers/ffn/norm/scale``.
      train: Whether the leaves are trained or frozen.
      optional: Whether the rule may match nothing, as with a trunk that has no pooler.
    """

    pattern: str
    train: bool
    optional: bool = False


def preset(name: str, head: HeadConfig = HeadConfig()) -> tuple[Rule, ...]:
    """Returns the rules of a preset.

    Every preset trains the heads. In addition, it trains:

    - ``head``: nothing else;
    - ``adapter``: the adapters;
    - ``fusion``: the fusion;
    - ``full``: the trunk;
    - ``adapter+trunk``: the adapters and the trunk;
    - ``layernorm``: the trunk's LayerNorms;
    - ``top_k``: the upper layers, which :func:`split_layers` has moved to ``top_layers``, and any LayerNorm after them.

    If the config ``head`` uses the trunk's pooler, the presets ``full``, ``adapter+trunk`` and ``top_k`` train the
    pooler too. Otherwise, the pooler is frozen.
    """
    heads = Rule("heads/.*", True)
    pooler = Rule("trunk/pooler/.*", head.pooler == "trunk", optional=True)
    body = "trunk/(embeddings|layers|norm)/.*"
    rules = {
        "adapter": (Rule("adapters/.*", True), heads, Rule("trunk/.*", False)),
        "fusion": (Rule("fusion/.*", True), heads, Rule("(trunk|adapters)/.*", False)),
        "head": (heads, Rule("trunk/.*", False)),
        "full": (Rule(body, True), pooler, heads),
        "adapter+trunk": (Rule("adapters/.*", True), Rule(body, True), pooler, heads),
        "layernorm": (
            Rule("trunk/(.*/)?norm/(scale|bias)", True),
            Rule("trunk/(?!(.*/)?norm/(scale|bias)).*", False),
            heads,
        ),
        "top_k": (Rule("trunk/(top_layers|norm)/.*", True), Rule("trunk/(embeddings|layers)/.*", False), pooler, heads),
    }
    return rules[name]


def label(params: Tree, rules: Sequence[Rule]) -> dict[str, bool]:
    """Decides for each leaf whether it is trained, as ``{path: trained}``.

    Raises:
      UserError: A leaf matches no rule or several rules, or a rule matches no leaf. The message lists them.
    """
    labels: dict[str, bool] = {}
    paths = list(flatten(params))
    problems = []
    for rule in rules:
        matched = [path for path in paths if re.fullmatch(rule.pattern, path)]
        if not matched and not rule.optional:
            problems.append(f'rule "{rule.pattern}" matches no leaf')
        problems += [f"{path} matches two rules" for path in matched if path in labels]
        labels.update(dict.fromkeys(matched, rule.train))
    problems += [f"{path} matches no rule" for path in paths if path not in labels]
    if problems:
        listing = "; ".join(problems[:6]) + (f"; and {len(problems) - 6} more" if len(problems) > 6 else "")
        raise UserError(f"The partition does not cover the parameters exactly once: {listing}. Correct the rules.")
    return labels


def split(params: Tree, labels: dict[str, bool]) -> tuple[Tree, Tree]:
    """Splits parameters into a trained and a frozen tree.

    :func:`afjax.trees.merge` joins them again.
    """
    return select(params, lambda path: labels[path]), select(params, lambda path: not labels[path])


def split_layers(trunk: Tree, top_k: int) -> Tree:
    """Moves the upper ``top_k`` layers from ``layers`` to ``top_layers``.

    A preset can then train only these layers. :func:`afjax.trunk.layers.join_layers` joins them again.

    Raises:
      UserError: ``top_k`` is not between 1 and the trunk's number of layers.
    """
    depth = num_layers(trunk["layers"])
    if not 0 < top_k <= depth:
        raise UserError(f"top_k is {top_k}, but the trunk has {counted(depth, 'layer')}; choose 1 to {depth}.")
    other_params = {name: tree for name, tree in trunk.items() if name != "layers"}
    upper = jax.tree.map(lambda leaf: leaf[depth - top_k :], trunk["layers"])
    if top_k < depth:
        other_params["layers"] = jax.tree.map(lambda leaf: leaf[: depth - top_k], trunk["layers"])
    return {**other_params, "top_layers": upper}
