"""Networks that the zoo does not have and strangers will bring, in the ops that converters write: for tests, and to be
measured by benchmarks/families.py. Seeded weights; activations in a healthy range."""

from __future__ import annotations

from strangers import classifiers, pictures, sandwiches, sequences
from strangers.layers import Builder

#: Name -> what builds it; its keyword arguments are in its `options`.
NETWORKS: dict[str, Builder] = {
    build.__name__: build
    for build in (
        *(classifiers.inception_v3, classifiers.xception, classifiers.resnet50_v2, classifiers.nasnet_mobile),
        *(classifiers.mnasnet, classifiers.regnet_y, classifiers.ghostnet, classifiers.hrnet_w18_small),
        *(pictures.unet, pictures.yolo, pictures.edsr, pictures.espcn, pictures.efficientdet),
        *(sequences.deit_tiny, sequences.mobilevit_xs, sequences.bert, sequences.gpt, sequences.wav2vec),
        *(sequences.conformer, sequences.crnn, sequences.llama, sandwiches.sandwiches),
    )
}
