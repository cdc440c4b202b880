"""FlowNet 2.0 (lmb-freiburg/flownet2)."""

from __future__ import annotations

from autodial.proto.dialects.dialect import Dialect

DIALECT = Dialect(
    "flownet2",
    {
        "coeff_schedule_param": ("DataAugmentation", "FlowAugmentation", "GenerateAugmentationParameters"),
        "augmentation_param": ("DataAugmentation", "FlowAugmentation", "GenerateAugmentationParameters"),
        "correlation_param": ("Correlation", "Correlation1D"),
        "l1_loss_param": ("L1Loss",),
        "writer_param": ("FLOWriter", "FloatWriter", "IMGWriter", "PFMWriter"),
        "reader_param": ("FloatReader", "ImgReader"),
        "mean_param": ("Mean",),
        "resample_param": ("Resample",),
        "downsample_param": ("Downsample",),
        "lpq_loss_param": ("LpqLoss",),
        "flow_warp_param": ("FlowWarp",),
        "accum_param": ("Accum",),
    },
    without_effect=frozenset({"reshape_every_iter"}),
)
