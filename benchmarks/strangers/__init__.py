"""Networks that the zoo does not have and strangers will bring, in the ops that converters write: for tests, and to be
measured by benchmarks/families.py. Seeded weights; activations in a healthy range."""

from __future__ import annotations

from strangers import (
    branching,
    classifiers,
    decoders,
    dense,
    generators,
    hybrids,
    metaformers,
    pictures,
    residual,
    sandwiches,
    segmenting,
    sequences,
    signals,
    sounds,
    tables,
    texts,
    towers,
)
from strangers.layers import Builder

#: Name -> what builds it; its keyword arguments are in its `options`.
NETWORKS: dict[str, Builder] = {
    build.__name__: build
    for build in (
        *(classifiers.inception_v3, classifiers.xception, classifiers.resnet50_v2, classifiers.nasnet_mobile),
        *(classifiers.mnasnet, classifiers.regnet_y, classifiers.ghostnet, classifiers.hrnet_w18_small),
        *(residual.resnet18, residual.resnet34, residual.resnet152, residual.wide_resnet50, residual.seresnet50),
        *(residual.regnet_x_8gf, residual.regnet_y_8gf, residual.repvgg_a2, residual.cspdarknet53, residual.vovnet39),
        *(residual.efficientnet_b3, residual.efficientnet_lite0, residual.mobilenet_v4, residual.mobileone_s1),
        *(metaformers.convnext_v2, metaformers.poolformer_s12, metaformers.resmlp_12, metaformers.gmlp_s16),
        *(branching.alexnet, branching.googlenet, branching.inception_resnet_v2, branching.seresnext50),
        *(branching.res2net50, branching.dpn92, branching.bit_resnet50, branching.nfnet_f0, branching.mixnet_s),
        *(branching.efficientnet_v2_s, branching.dla34),
        *(hybrids.levit_256, hybrids.efficientformer_l1, hybrids.edgenext_small),
        *(generators.pix2pix, generators.cyclegan, generators.srresnet, generators.rcan, generators.diffusion),
        *(generators.stylegan, segmenting.pspnet, segmenting.unet_plus, segmenting.bisenet, segmenting.hourglass),
        *(segmenting.yolov5s,),
        *(pictures.unet, pictures.yolo, pictures.edsr, pictures.espcn, pictures.efficientdet),
        *(sequences.deit_tiny, sequences.mobilevit_xs, sequences.bert, sequences.gpt, sequences.wav2vec),
        *(dense.deeplab_resnet50, dense.retinanet, dense.linknet, dense.yolox_s, dense.dncnn, dense.esrgan),
        *(dense.stylize, dense.dcgan, signals.pointnet, signals.recommender, signals.lstm, signals.wavenet),
        *(sequences.conformer, sequences.crnn, sequences.llama, sandwiches.sandwiches),
        *(texts.distilbert, texts.albert, texts.mobilebert, texts.electra_small, texts.t5_encoder, texts.sentences),
        *(texts.queries, texts.clip_text, texts.text_cnn, texts.fasttext, texts.gru_unrolled),
        *(sounds.whisper_tiny, sounds.quartznet, sounds.ds_cnn, sounds.tc_resnet, sounds.yamnet, sounds.demucs),
        *(sounds.hifigan, tables.autoencoder, tables.wide_mlp, tables.dlrm, tables.dcn, tables.ft_transformer),
        *(tables.nbeats, tables.patchtst, tables.tcn, tables.st_gcn, tables.pointnet2),
        *(towers.clip_image, towers.detr_decoder, towers.perceiver),
        *(decoders.translator, decoders.grouped_queries, decoders.conformer_relative, decoders.informer),
        *(decoders.decode_step, texts.places_first, sounds.ecapa, sounds.conv_tasnet, sounds.codec, tables.tabnet),
        *(tables.two_towers,),
    )
}
