"""Control flow, and what lives beside the tensors: variables and hash tables."""

from __future__ import annotations

from litegpu.model.ops.record import Op

_CALL = "converters write it no more; the operators around it are divided among delegates by themselves"
_TYPES = "of any type but strings (int64 in two words), in shapes that stay"
_BRANCH = f"values {_TYPES}; both branches and a choice, or one of them if they are large or may run without end"
_LOOP = (
    f"a state {_TYPES}; its rounds one behind the other if their number follows from constants and they come to at "
    "most 20,000 operators, else as a loop; parts of a state may change places (on the CPU one overwrites the other); "
    "elements of lists are set in place"
)
_ONCE = "what it calls is run by the CPU, before the first inference"
_TABLE = "it fills or reads a table of the process, of strings as a rule, which stays with the CPU"
_VARIABLE = "of a fixed shape: its value is a tensor that stays on the device between inferences"

# fmt: off
OPS = (
    Op("ASSIGN_VARIABLE", "v:resource x:any ->", moves="elements", linked=_VARIABLE),
    Op("CALL", "x*:object -> .*:object", calls="all", moves="elements", stays=_CALL),
    Op("CALL_ONCE", "->", moves="elements", linked=_ONCE),
    Op("HASHTABLE", "-> .:resource", moves="elements", stays=_TABLE),
    Op("HASHTABLE_FIND", "t:resource keys:any default:any -> .:any", moves="elements", stays=_TABLE),
    Op("HASHTABLE_IMPORT", "t:resource keys:any values:any ->", moves="elements", stays=_TABLE),
    Op("HASHTABLE_SIZE", "t:resource -> .", moves="elements", stays=_TABLE),
    Op("IF", "p:bool x*:object -> .*:object", calls="branch", moves="elements", linked=_BRANCH),
    Op("READ_VARIABLE", "v:resource -> .:any", moves="elements", linked=_VARIABLE),
    Op("VAR_HANDLE", "-> .:resource", moves="elements", linked=_VARIABLE),
    Op("WHILE", "x+:object -> .*:object", calls="loop", moves="elements", linked=_LOOP),
)
# fmt: on
