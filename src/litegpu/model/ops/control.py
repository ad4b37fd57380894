"""Control flow, and what lives beside the tensors: variables and hash tables."""

from __future__ import annotations

from litegpu.model.ops.record import Op

_FLOW = "control flow: the operators around it, and in what it calls, are divided among delegates by themselves"
_TABLE = "it fills or reads a table of the process, of strings as a rule, which stays with the CPU"
_VARIABLE = "a variable of the process: it enters and leaves the GPU's part of a model as a tensor does"

# fmt: off
OPS = (
    Op("ASSIGN_VARIABLE", "v:resource x:any ->", moves="elements", stays=_VARIABLE),
    Op("CALL", "x*:object -> .*:object", calls="all", moves="elements", stays=_FLOW),
    Op("CALL_ONCE", "->", moves="elements", stays=_FLOW),
    Op("HASHTABLE", "-> .:resource", moves="elements", stays=_TABLE),
    Op("HASHTABLE_FIND", "t:resource keys:any default:any -> .:any", moves="elements", stays=_TABLE),
    Op("HASHTABLE_IMPORT", "t:resource keys:any values:any ->", moves="elements", stays=_TABLE),
    Op("HASHTABLE_SIZE", "t:resource -> .", moves="elements", stays=_TABLE),
    Op("IF", "p:bool x*:object -> .*:object", calls="branch", moves="elements", stays=_FLOW),
    Op("READ_VARIABLE", "v:resource -> .:any", moves="elements", stays=_VARIABLE),
    Op("VAR_HANDLE", "-> .:resource", moves="elements", stays=_VARIABLE),
    Op("WHILE", "x+:object -> .*:object", calls="loop", moves="elements", stays=_FLOW),
)
# fmt: on
