"""Short forms of FlowNet 2.0's deploy nets: their layers and options, with fewer levels and channels.

As in the templates, the target's size is that of the images, the adapted one the next that the net takes, and the last
layer scales the flow from one to the other.
"""

from __future__ import annotations

LEVELS = 3
"""Halvings on the way down."""


def layer(name, kind, bottoms, tops, body=""):
    names = [f'bottom: "{each}"' for each in bottoms.split()] + [f'top: "{each}"' for each in tops.split()]
    return f'layer {{ name: "{name}" type: "{kind}" {" ".join(names)} {body} }}\n'


def conv(name, bottoms, tops, outputs, kernel=3, stride=1, kind="Convolution", relu=True):
    fields = f"num_output: {outputs} pad: {(kernel - 1) // 2} kernel_size: {kernel} stride: {stride}"
    fillers = 'weight_filler { type: "msra" } bias_filler { type: "constant" } engine: CUDNN'
    text = layer(name, kind, bottoms, tops, f"convolution_param {{ {fields} {fillers} }}")
    for top in tops.split() if relu else ():
        text += layer(f"relu_{top}", "ReLU", top, top, "relu_param { negative_slope: 0.1 }")
    return text


def deconv(name, bottom, top, outputs, relu=True):
    return conv(name, bottom, top, outputs, kernel=4, stride=2, kind="Deconvolution", relu=relu)


def weighted(name, bottoms, top, *coefficients):
    stated = " ".join(f"coeff: {each}" for each in coefficients)
    return layer(name, "Eltwise", bottoms, top, f"eltwise_param {{ operation: SUM {stated} }}")


def images(target, adapted):
    """Two images as a net sees them: scaled, less the stored mean, resized; called a and b."""
    dims = f"dim: 1 dim: 3 dim: {target[0]} dim: {target[1]}"
    text = f'input: "img0" input: "img1" input_shape {{ {dims} }} input_shape {{ {dims} }}\n'
    for number, name in enumerate("ab"):
        raw = f"img{number}"
        text += weighted(f"Eltwise_{name}", raw, f"{raw}s", 0.00392156862745098)
        text += layer(f"{raw}s_aug", "DataAugmentation", f"{raw}s", f"{raw}_nomean", "augmentation_param { "
                      "augment_during_test: true recompute_mean: 1000 mean_per_pixel: false }")  # fmt: skip
        size = f"width: {adapted[1]} height: {adapted[0]}"
        text += layer(f"Resample_{name}", "Resample", f"{raw}_nomean", name,
                      f"resample_param {{ {size} type: LINEAR antialias: true }}")  # fmt: skip
    return text


def refined(net, skips, width):
    """From the last of the maps back up to the first, with a flow at each level; the flow is called NET_flow."""
    text, current = "", skips[-1]
    text += conv(f"{net}_predict{len(skips)}", current, f"{net}_flow{len(skips)}", 2, relu=False)
    for level in range(len(skips) - 1, 0, -1):
        text += deconv(f"{net}_deconv{level}", current, f"{net}_up{level}", width)
        text += deconv(f"{net}_upflow{level}", f"{net}_flow{level + 1}", f"{net}_upflow{level}", 2, relu=False)
        current = f"{net}_concat{level}"
        text += layer(current, "Concat", f"{skips[level - 1]} {net}_up{level} {net}_upflow{level}", current)
        text += conv(f"{net}_predict{level}", current, f"{net}_flow{level}", 2, relu=False)
    return text + weighted(f"{net}_scale", f"{net}_flow1", f"{net}_flow", 20.0)


def flownet_s_body(net, bottom, width):
    text, maps = "", []
    for level in range(1, LEVELS + 1):
        text += conv(f"{net}_conv{level}", bottom, f"{net}_{level}", width, 5 if level < 3 else 3, 2)
        bottom = f"{net}_{level}"
        maps.append(bottom)
    return text + refined(net, maps, width)


def flownet_c_body(net, width):
    """Both images through the same weights, then their correlation."""
    text = conv(f"{net}_conv1", "a b", f"{net}_1a {net}_1b", width, 7, 2)
    text += conv(f"{net}_conv2", f"{net}_1a {net}_1b", f"{net}_2a {net}_2b", width, 5, 2)
    text += layer(f"{net}_corr", "Correlation", f"{net}_2a {net}_2b", f"{net}_corr", "correlation_param { pad: 4 "
                  "kernel_size: 1 max_displacement: 4 stride_1: 1 stride_2: 2 }")  # fmt: skip
    text += layer(f"{net}_relu_corr", "ReLU", f"{net}_corr", f"{net}_corr", "relu_param { negative_slope: 0.1 }")
    text += conv(f"{net}_redir", f"{net}_2a", f"{net}_redir", width, 1)
    text += layer(f"{net}_concat", "Concat", f"{net}_redir {net}_corr", f"{net}_both", "concat_param { axis: 1 }")
    text += conv(f"{net}_conv3", f"{net}_both", f"{net}_3", width, 3, 2)
    return text + refined(net, [f"{net}_1a", f"{net}_2a", f"{net}_3"], width)


def resized(bottom, target, adapted):
    """The flow in the images' own size and in their pixels, called predict_flow_final."""
    size = f"width: {target[1]} height: {target[0]}"
    text = layer("Resample_flow", "Resample", bottom, "predict_flow_resize",
                 f"resample_param {{ {size} type: LINEAR antialias: true }}")  # fmt: skip
    scales = " ".join(f"diag_val: {target[i] / adapted[i]}" for i in (1, 0))
    return text + layer("scale_conv1", "Convolution", "predict_flow_resize", "predict_flow_final",
                        f'convolution_param {{ num_output: 2 kernel_size: 1 weight_filler {{ type: "diagonal" {scales} '
                        '} bias_filler { type: "constant" } }')  # fmt: skip


def flownet_s(target=(22, 30), adapted=(24, 32), width=6):
    text = images(target, adapted) + layer("Concat1", "Concat", "a b", "input", "concat_param { axis: 1 }")
    return text + flownet_s_body("s", "input", width) + resized("s_flow", target, adapted)


def flownet_c(target=(22, 30), adapted=(24, 32), width=6):
    return images(target, adapted) + flownet_c_body("c", width) + resized("c_flow", target, adapted)


def seen_through(flow, warped, error):
    """The second image through a flow, and how far it is off the first."""
    text = layer(f"warp_{warped}", "FlowWarp", f"b {flow}", warped)
    text += weighted(f"difference_{warped}", f"a {warped}", f"{warped}_difference", 1.0, -1.0)
    return text + layer(f"norm_{warped}", "ChannelNorm", f"{warped}_difference", error)


def flownet_2(target=(22, 30), adapted=(24, 32), width=6):
    """FlowNetC, refined by a FlowNetS, beside FlowNetSD, and what puts the two flows together."""
    text = images(target, adapted) + flownet_c_body("c", width)
    text += layer("Accum1", "Accum", "c_flow a", "c_full", "accum_param { have_reference: true }")
    text += seen_through("c_full", "c_warped", "c_error") + weighted("c_small", "c_full", "c_small", 0.05)
    text += layer("Concat_2", "Concat", "a b c_warped c_small c_error", "input_2", "concat_param { axis: 1 }")
    text += flownet_s_body("net2", "input_2", width)
    text += layer("Concat_sd", "Concat", "a b", "input_sd", "concat_param { axis: 1 }")
    text += flownet_s_body("netsd", "input_sd", width) + weighted("sd_scale", "netsd_flow", "sd_small", 0.05)
    for net, flow in (("sd", "sd_small"), ("css", "net2_flow")):
        text += layer(f"Resample_{net}", "Resample", f"{flow} a", f"{net}_full", "resample_param { type: NEAREST "
                      "antialias: false factor: 1.0 }")  # fmt: skip
        text += layer(f"length_{net}", "ChannelNorm", f"{net}_full", f"{net}_length")
        text += seen_through(f"{net}_full", f"{net}_warped", f"{net}_error")
    bottoms = "a sd_full css_full sd_length css_length sd_error css_error"
    text += layer("Concat_fuse", "Concat", bottoms, "input_fuse", "concat_param { axis: 1 }")
    text += conv("fuse_conv0", "input_fuse", "fuse_0", width) + conv("fuse_conv1", "fuse_0", "fuse_1", width, 3, 2)
    text += refined("fuse", ["fuse_0", "fuse_1"], width)
    return text + resized("fuse_flow", target, adapted)
