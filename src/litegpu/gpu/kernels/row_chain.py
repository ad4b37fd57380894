"""Reductions over the channels one behind the other, and what is computed of them: a row stays in the registers of the
threads that share it."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.gpu.graph import Apply, Arg, Expr, RowChain, tables
from litegpu.gpu.kernels.access import Operands, open_sink, open_source, open_table, read_all
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.expression import Argument, evaluate
from litegpu.gpu.kernels.reduce import combined, neutral
from litegpu.gpu.kernels.rows import Row, choose_teams
from litegpu.gpu.lang import Kernel, TracedValue, trace


def build(ctx: KernelContext) -> list[Launch]:
    """A team of threads for each row, which exchanges once for each stage."""
    op, node = ctx.node.op, ctx.node
    assert isinstance(op, RowChain)
    shape = ctx.output.shape
    teams = choose_teams(shape, ctx.features)
    operands: Operands = {}
    looked_up = {i for e in (op.result, *(x for s in op.stages for x in (s.prologue, s.epilogue))) for i in tables(e)}
    single = {i for i, v in enumerate(node.inputs) if ctx.value(v).shape[3] == 1 and i not in looked_up}

    def kernel(k: Kernel) -> None:
        row = Row(k, ctx.features, teams)
        opened = {v: open_source(ctx, k, v, operands) for i, v in enumerate(node.inputs) if i not in looked_up}
        sources = [None if i in looked_up else opened[v] for i, v in enumerate(node.inputs)]
        known = [open_table(ctx, k, v, operands) if i in looked_up else None for i, v in enumerate(node.inputs)]
        quads = [
            [t if t is not None else x for t, x in zip(known, read_all(sources, at), strict=True)] for at in row.places
        ]
        numbers: list[Argument] = [
            x[0] if i in single and isinstance(x, TracedValue) else x if i in looked_up else None
            for i, x in enumerate(quads[0])
        ]

        def of_elements(expr: Expr) -> list[TracedValue]:
            """Of each of this thread's quads; what is the same for a row is computed once."""
            rest, parts = parted(expr, {i for i, x in enumerate(numbers) if isinstance(x, TracedValue)}, len(numbers))
            of_row = [evaluate(k, part, numbers) for part in parts]
            found = [evaluate(k, rest, [*quad, *numbers[len(quad) :], *of_row]) for quad in quads]
            return [x if x.type.lanes == 4 else k.splat(x, 4) for x in found]

        for stage in op.stages:
            values = of_elements(stage.prologue)
            fill = neutral(stage.kind, values[0].type)

            def combine(a: TracedValue, b: TracedValue, kind: str = stage.kind) -> TracedValue:
                return combined(k, kind, a, b)

            total = row.total(row.masked(values, fill), combine)
            if stage.kind == "mean":
                total = total / float(shape[3]) if total.type.is_float else k.idiv_trunc(total, shape[3])
            numbers.append(evaluate(k, stage.epilogue, [*numbers, total]))
        row.store(open_sink(ctx, k, operands), of_elements(op.result))

    traced = trace(kernel, "row_chain", (teams.threads, 1, 1), (teams.groups, 1, 1))
    return [Launch(traced, operands, "row_chain")]


def parted(expr: Expr, known: set[int], args: int) -> tuple[Expr, list[Expr]]:
    """The expression, of `args` arguments, with one more for each largest part that is of nothing but `known` ones and
    numbers, and these parts."""
    parts: dict[Expr, int] = {}
    of_known: dict[int, bool] = {}
    made: dict[int, Expr] = {}

    def is_known(e: Expr) -> bool:
        if id(e) not in of_known:
            of_known[id(e)] = e.index in known if isinstance(e, Arg) else all(is_known(x) for x in _operands(e))
        return of_known[id(e)]

    def visit(e: Expr) -> Expr:
        if id(e) not in made:
            if isinstance(e, Apply) and is_known(e):
                made[id(e)] = Arg(args + parts.setdefault(e, len(parts)))
            else:
                made[id(e)] = Apply(e.fn, tuple(visit(x) for x in e.args)) if isinstance(e, Apply) else e
        return made[id(e)]

    return visit(expr), list(parts)


def _operands(e: Expr) -> Sequence[Expr]:
    """Of a function, those that are values: a table that is looked up is none."""
    if not isinstance(e, Apply):
        return ()
    return e.args[:1] if e.fn == "lookup" else e.args
