"""torch.compile on a network of torchvision's or timm's: GPU milliseconds in float16, for families.py.

    python benchmarks/families_peers.py [NETWORK] [--batches 1,64] [--wait]

NETWORK: a name of the zoo (default: resnet50). Mode reduce-overhead, channels last, CUDA events around 100 calls, as
`torch.compile` is best used for inference; the best of three rounds counts. With --wait it compiles first, prints READY
and measures after a line on its standard input: so that many can compile at once and none is measured beside another.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import sys
from typing import Any

#: Of torchvision, or after "timm:" of timm, after "merged:" with its branches merged. The text encoder is here, what
#: begins with "module:" in strangers.
ZOO = {
    "resnet50": "resnet50",
    "resnext50": "resnext50_32x4d",
    "mobilenet_v2": "mobilenet_v2",
    "mobilenet_v3": "mobilenet_v3_large",
    "efficientnet_b0": "efficientnet_b0",
    "efficientnet_v2_b0": "timm:tf_efficientnetv2_b0",
    "densenet121": "densenet121",
    "vgg16": "vgg16",
    "squeezenet": "squeezenet1_1",
    "shufflenet_v2": "shufflenet_v2_x1_0",
    "swin_tiny": "swin_t",
    "vit_tiny": "timm:vit_tiny_patch16_224",
    "mixer_s16": "timm:mixer_s16_224",
    "convnext_tiny": "convnext_tiny",
    "text_encoder": "text_encoder",
}
#: The networks of benchmarks/strangers that have a peer.
STRANGERS = {
    "inception_v3": "inception_v3",
    "xception": "timm:legacy_xception",
    "resnet50_v2": "timm:resnetv2_50",
    "mnasnet": "mnasnet1_0",
    "regnet_y": "regnet_y_400mf",
    "ghostnet": "timm:ghostnet_100",
    "hrnet_w18_small": "timm:hrnet_w18_small",
    "deit_tiny": "timm:deit_tiny_patch16_224",
    "mobilevit_xs": "timm:mobilevit_xs",
    "unet": "module:torch_modules.UNet",
    "yolo": "module:torch_modules.Yolo",
    "edsr": "module:torch_modules.Edsr",
    "bert": "module:torch_modules.bert",
    "gpt": "module:torch_modules.gpt",
    "resnet18": "resnet18",
    "resnet34": "resnet34",
    "resnet152": "resnet152",
    "wide_resnet50": "wide_resnet50_2",
    "seresnet50": "timm:seresnet50",
    "regnet_x_8gf": "regnet_x_8gf",
    "regnet_y_8gf": "regnet_y_8gf",
    "repvgg_a2": "merged:repvgg_a2",
    "cspdarknet53": "timm:cspdarknet53",
    "vovnet39": "timm:ese_vovnet39b",
    "efficientnet_b3": "efficientnet_b3",
    "efficientnet_lite0": "timm:tf_efficientnet_lite0",
    "mobilenet_v4": "timm:mobilenetv4_conv_small",
    "mobileone_s1": "merged:mobileone_s1",
    "convnext_v2": "timm:convnextv2_tiny",
    "poolformer_s12": "timm:poolformer_s12",
    "resmlp_12": "timm:resmlp_12_224",
    "gmlp_s16": "timm:gmlp_s16_224",
    "deeplab_resnet50": "segmentation.deeplabv3_resnet50",
    "retinanet": "module:torch_more.RetinaNet",
    "linknet": "module:torch_more.LinkNet",
    "yolox_s": "module:torch_more.YoloX",
    "dncnn": "module:torch_more.DnCnn",
    "esrgan": "module:torch_more.Esrgan",
    "stylize": "module:torch_more.Stylize",
    "dcgan": "module:torch_more.Dcgan",
    "pointnet": "module:torch_more.PointNet",
    "recommender": "module:torch_more.Recommender",
    "lstm": "module:torch_more.Lstm",
    "wavenet": "module:torch_more.WaveNet",
    "alexnet": "alexnet",
    "googlenet": "googlenet",
    "inception_resnet_v2": "timm:inception_resnet_v2",
    "seresnext50": "timm:seresnext50_32x4d",
    "res2net50": "timm:res2net50_26w_4s",
    "dpn92": "timm:dpn92",
    "bit_resnet50": "timm:resnetv2_50x1_bit",
    "nfnet_f0": "timm:dm_nfnet_f0",
    "mixnet_s": "timm:mixnet_s",
    "efficientnet_v2_s": "efficientnet_v2_s",
    "dla34": "timm:dla34",
    "levit_256": "timm:levit_256",
    "efficientformer_l1": "timm:efficientformer_l1",
    "edgenext_small": "timm:edgenext_small",
    "pix2pix": "module:torch_generators.Pix2Pix",
    "cyclegan": "module:torch_generators.CycleGan",
    "srresnet": "module:torch_generators.SrResNet",
    "rcan": "module:torch_generators.Rcan",
    "diffusion": "module:torch_generators.Diffusion",
    "stylegan": "module:torch_generators.StyleGan",
    "pspnet": "module:torch_segmenting.PspNet",
    "unet_plus": "module:torch_segmenting.UNetPlus",
    "bisenet": "module:torch_segmenting.BiSeNet",
    "hourglass": "module:torch_segmenting.Hourglass",
    "yolov5s": "module:torch_segmenting.YoloV5",
    "distilbert": "module:torch_texts.distilbert",
    "albert": "module:torch_texts.albert",
    "mobilebert": "module:torch_texts.MobileBert",
    "electra_small": "module:torch_texts.electra_small",
    "t5_encoder": "module:torch_texts.T5",
    "sentences": "module:torch_texts.sentences",
    "queries": "module:torch_texts.queries",
    "clip_text": "module:torch_texts.ClipText",
    "text_cnn": "module:torch_texts.TextCnn",
    "fasttext": "module:torch_texts.FastText",
    "gru_unrolled": "module:torch_texts.Gru",
    "clip_image": "module:torch_texts.ClipImage",
    "detr_decoder": "module:torch_texts.DetrDecoder",
    "perceiver": "module:torch_texts.Perceiver",
    "whisper_tiny": "module:torch_sounds.WhisperTiny",
    "quartznet": "module:torch_sounds.QuartzNet",
    "ds_cnn": "module:torch_sounds.DsCnn",
    "tc_resnet": "module:torch_sounds.TcResNet",
    "yamnet": "module:torch_sounds.YamNet",
    "demucs": "module:torch_sounds.Demucs",
    "hifigan": "module:torch_sounds.HifiGan",
    "autoencoder": "module:torch_tables.autoencoder",
    "wide_mlp": "module:torch_tables.wide_mlp",
    "dlrm": "module:torch_tables.Dlrm",
    "dcn": "module:torch_tables.Dcn",
    "ft_transformer": "module:torch_tables.FtTransformer",
    "nbeats": "module:torch_tables.Nbeats",
    "patchtst": "module:torch_tables.PatchTst",
    "tcn": "module:torch_tables.Tcn",
    "st_gcn": "module:torch_tables.StGcn",
    "pointnet2": "module:torch_tables.PointNet2",
    "translator": "module:torch_texts.Translator",
    "grouped_queries": "module:torch_texts.GroupedQueries",
    "places_first": "module:torch_texts.PlacesFirst",
    "conformer_relative": "module:torch_sounds.conformer_relative",
    "ecapa": "module:torch_sounds.Ecapa",
    "conv_tasnet": "module:torch_sounds.ConvTasNet",
}
NETWORKS = ZOO | STRANGERS
RESOLUTION, LENGTH, VOCABULARY = 224, 128, 30522
RESOLUTIONS = {
    **{"inception_v3": 299, "xception": 299, "mobilevit_xs": 256, "unet": 256, "yolo": 320, "edsr": 96},
    **{"cspdarknet53": 256, "efficientnet_b3": 300, "retinanet": 256, "linknet": 256, "yolox_s": 640, "dncnn": 128},
    **{"esrgan": 64, "stylize": 256, "inception_resnet_v2": 299, "nfnet_f0": 192, "pix2pix": 256, "cyclegan": 256},
    **{"srresnet": 64, "rcan": 64, "diffusion": 64, "pspnet": 240, "unet_plus": 256, "bisenet": 384},
    **{"hourglass": 256, "yolov5s": 640, "edgenext_small": 256},
}
#: (length, vocabulary)
TOKENS = {
    **{"text_encoder": (LENGTH, VOCABULARY), "bert": (128, 8192), "gpt": (256, 8192), "recommender": (26, 20000)},
    **{"distilbert": (128, 30522), "albert": (128, 30000), "mobilebert": (128, 30522), "electra_small": (128, 30522)},
    **{"t5_encoder": (128, 32128), "sentences": (512, 30522), "queries": (16, 30522), "clip_text": (77, 49408)},
    **{"text_cnn": (100, 20000), "fasttext": (256, 50000), "gru_unrolled": (64, 20000)},
    **{"dlrm": (39, 2000), "dcn": (39, 2000)},
    **{"translator": (128, 16384), "grouped_queries": (256, 8192), "places_first": (64, 8192)},
}
#: What is neither a picture nor tokens: floats of this shape.
FRAMES = {
    **{"dcgan": (100,), "stylegan": (1, 512), "pointnet": (1024, 3), "lstm": (128, 64), "wavenet": (4096, 1)},
    **{"whisper_tiny": (3000, 80), "quartznet": (400, 64), "ds_cnn": (49, 10), "tc_resnet": (98, 40)},
    **{"yamnet": (96, 64), "demucs": (16384, 1), "hifigan": (64, 80), "autoencoder": (1, 640), "wide_mlp": (1, 784)},
    **{"ft_transformer": (1, 40), "nbeats": (1, 60), "patchtst": (512, 7), "tcn": (784, 1), "st_gcn": (300, 75)},
    **{"pointnet2": (512, 192), "detr_decoder": (850, 256), "perceiver": (3136, 64)},
    **{"conformer_relative": (250, 144), "ecapa": (300, 80), "conv_tasnet": (8000, 1)},
}
#: Calls of a round, of which the fastest counts: as many as take ROUND milliseconds.
FEW_CALLS, CALLS, ROUND, ROUNDS = 20, 100, 150, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", nargs="?", choices=NETWORKS, default="resnet50")
    parser.add_argument("--batches", default="1,64")
    parser.add_argument("--wait", action="store_true")
    args = parser.parse_args()
    if args.wait:
        with contextlib.suppress(AttributeError):
            os.nice(10)  # what litegpu's networks are built by goes first, and is done soon
    import torch

    logging.disable(logging.ERROR)
    model = network(args.network).cuda().half().eval().to(memory_format=torch.channels_last)
    batches = [int(word) for word in args.batches.split(",")]
    torch.backends.cudnn.benchmark = True
    with torch.no_grad():
        ready = [warmed(model, args.network, batch) for batch in batches]
        if args.wait:
            print("READY", flush=True)
            sys.stdin.readline()
        for batch, (compiled, x) in zip(batches, ready, strict=True):
            calls = max(FEW_CALLS, min(CALLS, int(ROUND / milliseconds(compiled, x, 5))))
            taken = min(milliseconds(compiled, x, calls) for _ in range(ROUNDS))
            print(f"TORCH {args.network} b{batch} compile gpu_ms={taken:.4f}", flush=True)
    if args.wait:
        os._exit(0)  # others are waiting, and to take everything down takes a second


def warmed(model: Any, name: str, batch: int) -> tuple[Any, Any]:
    """The compiled model after some calls, and its input."""
    import torch

    if name in TOKENS:
        length, vocabulary = TOKENS[name]
        x = torch.randint(0, vocabulary, (batch, length), device="cuda")
    elif name in FRAMES:
        x = torch.randn(batch, *FRAMES[name], device="cuda").half()
    else:
        size = RESOLUTIONS.get(name, RESOLUTION)
        x = torch.randn(batch, 3, size, size, device="cuda").half()
        x = x.contiguous(memory_format=torch.channels_last)
    # not dynamic: else the second batch would be compiled for any size
    compiled = torch.compile(model, mode="reduce-overhead", dynamic=False)
    for _ in range(10):
        compiled(x)
    torch.cuda.synchronize()
    return compiled, x


def milliseconds(compiled: Any, x: Any, calls: int) -> float:
    """Of one call, the mean of so many."""
    import torch

    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        compiled(x)
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / calls


def network(name: str) -> Any:
    found = NETWORKS[name]
    if name == "text_encoder":
        return text_encoder()
    if found.startswith("timm:"):
        import timm

        return timm.create_model(found[5:])
    if found.startswith("merged:"):
        import timm
        from timm.utils import reparameterize_model

        return reparameterize_model(timm.create_model(found[7:]).eval())
    if found.startswith("module:"):
        module, made = found[7:].split(".")
        return getattr(importlib.import_module(f"strangers.{module}"), made)()
    import torchvision

    if name == "inception_v3":
        return torchvision.models.inception_v3(aux_logits=False, init_weights=False)
    if name == "googlenet":
        return torchvision.models.googlenet(aux_logits=False, init_weights=False)
    if found.startswith("segmentation."):
        made = getattr(torchvision.models.segmentation, found[13:])
        return made(weights=None, weights_backbone=None, num_classes=21, aux_loss=False)
    return getattr(torchvision.models, found)()


def text_encoder(depth: int = 6, width: int = 384, heads: int = 12, inner: int = 1536) -> Any:
    """The zoo's: layer norms behind the sums, GELU by tanh, and the mean of the last layer."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.wide, self.narrow = nn.Linear(width, inner), nn.Linear(inner, width)
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

        def forward(self, x: Any) -> Any:
            b, n, _ = x.shape
            q, k, v = self.qkv(x).reshape(b, n, 3, heads, width // heads).permute(2, 0, 3, 1, 4).unbind(0)
            y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, width)
            x = self.first(x + self.out(y))
            return self.second(x + self.narrow(nn.functional.gelu(self.wide(x), approximate="tanh")))

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(VOCABULARY, width)
            self.places = nn.Parameter(torch.randn(1, LENGTH, width))
            self.norm = nn.LayerNorm(width)
            self.blocks = nn.Sequential(*(Block() for _ in range(depth)))

        def forward(self, tokens: Any) -> Any:
            return self.blocks(self.norm(self.table(tokens) + self.places)).mean(1)

    return Encoder()


if __name__ == "__main__":
    main()
