"""The small AutoDIAL net that tests of several parts train on images of their own."""

from __future__ import annotations

from string import Template

NET = Template(
    """
name: "${name}"
layer { name: "source" type: "ImageData" top: "source" top: "label" include { phase: TRAIN }
  transform_param { ${transform_train} }
  image_data_param { source: "source.txt" batch_size: ${source} shuffle: true } }
layer { name: "target" type: "ImageData" top: "target" top: "target-label" include { phase: TRAIN }
  transform_param { ${transform_train} }
  image_data_param { source: "target.txt" batch_size: ${target} shuffle: true } }
layer { name: "silence" type: "Silence" bottom: "target-label" include { phase: TRAIN } }
layer { name: "data" type: "Concat" bottom: "source" bottom: "target" top: "data" include { phase: TRAIN }
  concat_param { axis: 0 } }
layer { name: "test" type: "ImageData" top: "data" top: "label" include { phase: TEST }
  transform_param { ${transform_test} }
  image_data_param { source: "test.txt" batch_size: ${test} } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: ${filters} kernel_size: 3 weight_filler { type: "xavier" } } }
${dial_conv}
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }${drop}
layer { name: "fc" type: "InnerProduct" bottom: "conv" top: "fc"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }${dial_fc}
layer { name: "slice" type: "Slice" bottom: "fc" top: "fc-source" top: "fc-target" include { phase: TRAIN }
  slice_param { axis: 0 slice_point: ${source} } }
layer { name: "loss-source" type: "SoftmaxWithLoss" bottom: "fc-source" bottom: "label" top: "loss-source"
  include { phase: TRAIN } }
layer { name: "loss-target" type: "EntropyLoss" bottom: "fc-target" top: "loss-target" loss_weight: 0.1
  include { phase: TRAIN } }${loss_test}
layer { name: "accuracy" type: "Accuracy" bottom: "fc" bottom: "label" top: "accuracy" include { phase: TEST } }
"""
)
DIAL = Template(
    """layer { name: "${bottom}/dial" type: "Dial" bottom: "${bottom}" top: "${bottom}"
  dial_param { slice_point: ${source} moving_average_fraction: ${fraction}
    weight_filler { type: "constant" value: ${alpha} } } }"""
)
DROP = """
layer { name: "drop" type: "Dropout" bottom: "conv" top: "conv" dropout_param { dropout_ratio: 0.3 } }"""
LOSS_TEST = """
layer { name: "loss-test" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss-test"
  include { phase: TEST } }"""


def small_net(
    name: str,
    batches: tuple[int, int, int],
    *,
    scaling: str,
    augmented: bool,
    filters: int,
    alphas: tuple[float, ...],
    fraction: float,
    drop: bool = False,
    loss_test: bool = False,
) -> str:
    """A net for three classes, which reads source.txt, target.txt and test.txt.

    Args:
        batches: images of the source, of the target and in the TEST phase.
        scaling: fields of transform_param, in both phases.
        augmented: crops of 8 x 8 pixels in both phases, and mirrored images in TRAIN.
        alphas: alpha of the Dial layers behind conv and, if there are two, behind fc.
        fraction: their moving_average_fraction.
        drop: with Dropout before fc.
        loss_test: with a loss in the TEST phase, too.
    """
    source, target, test = batches
    dials = [
        DIAL.substitute(bottom=bottom, source=source, fraction=fraction, alpha=alpha)
        for bottom, alpha in zip(("conv", "fc"), alphas, strict=False)
    ]
    return NET.substitute(
        name=name,
        source=source,
        target=target,
        test=test,
        transform_train=f"crop_size: 8 mirror: true {scaling}" if augmented else scaling,
        transform_test=f"crop_size: 8 {scaling}" if augmented else scaling,
        filters=filters,
        dial_conv=dials[0],
        drop=DROP if drop else "",
        dial_fc="".join(f"\n{dial}" for dial in dials[1:]),
        loss_test=LOSS_TEST if loss_test else "",
    )
