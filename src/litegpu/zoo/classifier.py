"""What all picture classifiers of the zoo are built with: each says its layers, and what else it can be told."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from litegpu.zoo.layers import Layers

Lay = Callable[..., None]


def classifier(title: str) -> Callable[[Lay], Callable[..., bytes]]:
    """Makes a builder of `lay(net, picture, classes, *, option=default, ...)`, which lays the layers behind the input:
    [batch, resolution, resolution, 3] in -1..1 to probabilities [batch, classes].

    The builder gives the bytes of the file. It takes the options of all classifiers by name, and in their middle those
    of `lay`; the file's description is `title`, formatted with its own options and the resolution.
    """

    def decorate(lay: Lay) -> Callable[..., bytes]:
        own = {
            name: parameter.default
            for name, parameter in inspect.signature(lay).parameters.items()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        }
        defaults: dict[str, Any] = dict(seed=0, precision="float32", quantized=False, batch=1)
        defaults |= own | dict(resolution=224, classes=1000)

        def build(**given: Any) -> bytes:
            if unknown := set(given) - set(defaults):
                raise TypeError(f"{lay.__name__}() has no option {', '.join(sorted(unknown))}")
            options = defaults | given
            resolution, classes = options.pop("resolution"), options.pop("classes")
            rest = {name: options.pop(name) for name in own}
            net = Layers(f"{title.format(resolution=resolution, **rest)}, seeded weights", **options)
            lay(net, net.image("input", resolution, resolution), classes, **rest)
            return net.build()

        build.__name__, build.__doc__, build.__module__ = lay.__name__, lay.__doc__, lay.__module__
        build.__signature__ = inspect.Signature(  # type: ignore[attr-defined] # which the catalogue reads
            [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=v) for n, v in defaults.items()]
        )
        return build

    return decorate
