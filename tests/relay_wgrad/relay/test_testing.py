"""`relay.testing`: Relay 0.19's networks."""

import inspect

import numpy as np
import pytest
import tvm

from relay_wgrad import relay
from relay_wgrad.relay import testing
from tests.fixtures.relay import inputs

# As real Relay printed them.
FIXTURES = {
    "mlp_fwd": lambda: testing.mlp.get_workload(4),
    "resnet8_cifar_fwd": lambda: testing.resnet.get_workload(
        batch_size=2, num_classes=10, num_layers=8, image_shape=(3, 28, 28)
    ),
    "mobilenet_fwd": lambda: testing.mobilenet.get_workload(
        num_classes=10, image_shape=(3, 64, 64)
    ),
    "dcgan_fwd": lambda: testing.dcgan.get_workload(1, ngf=8, random_len=16),
}
# The arguments of `get_workload`, and its defaults.
SIGNATURES = {
    "mlp": "batch_size, num_classes=10, image_shape=(1, 28, 28), dtype='float32'",
    "resnet": "batch_size=1, num_classes=1000, num_layers=18, image_shape=(3, 224, 224),"
    " layout='NCHW', dtype='float32', kwargs",
    "vgg": "batch_size, num_classes=1000, image_shape=(3, 224, 224), dtype='float32',"
    " num_layers=11, batch_norm=False",
    "mobilenet": "batch_size=1, num_classes=1000, image_shape=(3, 224, 224), dtype='float32',"
    " layout='NCHW'",
    "squeezenet": "batch_size=1, num_classes=1000, version='1.0', image_shape=(3, 224, 224),"
    " dtype='float32'",
    "densenet": "densenet_size=121, classes=1000, batch_size=4, image_shape=(3, 224, 224),"
    " dtype='float32'",
    "inception_v3": "batch_size=1, num_classes=1000, image_shape=(3, 299, 299), dtype='float32'",
    "dqn": "batch_size, num_actions=18, image_shape=(4, 84, 84), dtype='float32', layout='NCHW'",
    "dcgan": "batch_size, oshape=(3, 64, 64), ngf=128, random_len=100, layout='NCHW',"
    " dtype='float32'",
}
# (workload, the result's shape, some parameters' shapes, the number of parameters in all).  The
# numbers are those that Relay 0.19's own files give; SqueezeNet's are the paper's too.
NETWORKS = {
    "resnet18": (
        lambda: testing.resnet.get_workload(batch_size=2),
        (2, 1000),
        {
            "bn_data_gamma": (3,),
            "conv0_weight": (64, 3, 7, 7),
            "stage2_unit1_sc_weight": (128, 64, 1, 1),
            "stage4_unit2_conv2_weight": (512, 512, 3, 3),
            "fc1_weight": (1000, 512),
        },
        11_699_892,
    ),
    "resnet50_nhwc": (
        lambda: testing.resnet.get_workload(
            num_layers=50, image_shape=(64, 64, 3), layout="NHWC", num_classes=7
        ),
        (1, 7),
        {"conv0_weight": (7, 7, 3, 64), "stage1_unit1_conv1_weight": (1, 1, 64, 64)},
        23_560_403,
    ),
    "resnet164_cifar": (
        lambda: testing.resnet.get_workload(
            num_layers=164, image_shape=(3, 28, 28), num_classes=10
        ),
        (1, 10),
        {"stage3_unit18_conv3_weight": (256, 64, 1, 1)},
        1_727_494,
    ),
    "vgg11": (
        lambda: testing.vgg.get_workload(1, 10, (3, 32, 32), batch_norm=True),
        (1, 10),
        {
            "conv5_2_weight": (512, 512, 3, 3),
            "conv1_1_bias": (64,),
            "bn3_2_gamma": (256,),
            "fc6_weight": (4096, 512),
            "fc8_bias": (10,),
        },
        28_155_018,
    ),
    "mobilenet_nhwc": (
        lambda: testing.mobilenet.get_workload(image_shape=(64, 64, 3), layout="NHWC"),
        (1, 1000),
        {"separable_conv_block_2_weight": (3, 3, 64, 1), "fc_weight": (1000, 1024)},
        4_253_864,
    ),
    "squeezenet1.0": (
        lambda: testing.squeezenet.get_workload(),
        (1, 1000),
        {"conv1_weight": (96, 3, 7, 7), "fire8_right_conv_weight": (256, 64, 3, 3)},
        1_248_424,
    ),
    "squeezenet1.1": (
        lambda: testing.squeezenet.get_workload(version="1.1"),
        (1, 1000),
        {"conv1_weight": (64, 3, 3, 3), "conv_final_bias": (1000,)},
        1_235_496,
    ),
    "densenet121": (
        lambda: testing.densenet.get_workload(batch_size=1),
        (1, 1000),
        {
            "conv2d_1_0_0_weight": (128, 64, 1, 1),
            "conv2d_2_3_15_weight": (32, 128, 3, 3),
            "conv_t_0_weight": (128, 192, 1, 1),
            "batch2_gamma": (512,),
            "dense_weight": (1000, 512),
        },
        3_568_808,
    ),
    "densenet169": (
        lambda: testing.densenet.get_workload(169, batch_size=1),
        (1, 1000),
        {"conv1_weight": (69, 3, 7, 7)},
        5_363_899,
    ),
    "inception_v3": (
        lambda: testing.inception_v3.get_workload(),
        (1, 1000),
        {
            "conv_conv1_weight": (32, 3, 3, 3),
            "mixed_tower_conv_1_conv1_weight": (64, 48, 5, 5),
            "mixed_3_tower_conv_2_bn_beta": (96,),
            "mixed_7_tower_1_conv_4_conv1_weight": (192, 192, 1, 7),
            "mixed_8_tower_1_conv_3_conv1_weight": (192, 192, 3, 3),
            "mixed_10_tower_1_mixed_conv_1_conv1_weight": (384, 384, 3, 1),
            "mixed_10_tower_2_conv_conv1_weight": (192, 2048, 1, 1),
            "fc1_weight": (1000, 2048),
            "fc2_bias": (1000,),
        },
        23_869_000,
    ),
    "dqn": (
        lambda: testing.dqn.get_workload(2),
        (2, 18),
        {"conv1_weight": (32, 4, 8, 8), "conv3_bias": (64,), "dense1_weight": (512, 3136)},
        1_693_362,
    ),
    "dcgan_nhwc": (
        lambda: testing.dcgan.get_workload(2, oshape=(3, 64, 64), layout="NHWC", ngf=8),
        (2, 64, 64, 3),
        {"g2_deconv_weight": (4, 4, 32, 64), "g5_deconv_weight": (4, 4, 3, 8)},
        146_016,
    ),
}


@pytest.mark.parametrize("name", FIXTURES)
def test_as_relay_printed_it(name):
    mod, params = FIXTURES[name]()
    text = inputs.load(name)[2]
    assert relay.structural_equal(mod, relay.fromtext(text))
    assert mod.astext() == text
    assert list(params) == [p.name for p in mod["main"].params if p.name != "data"]


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments(name):
    get_workload = getattr(testing, name).get_workload
    got = ", ".join(
        p.name if p.default is p.empty else f"{p.name}={p.default!r}"
        for p in inspect.signature(get_workload).parameters.values()
    )
    assert got == SIGNATURES[name]


@pytest.mark.share(5)
@pytest.mark.parametrize("name", NETWORKS)
def test_network_lowers(name):
    make, shape, some, total = NETWORKS[name]
    mod, params = make()
    assert mod["main"].ret_type == relay.TensorType(shape)
    for key, value in some.items():
        assert tuple(params[key].shape) == value
    assert sum(int(np.prod(p.shape)) for p in params.values()) == total
    lowered = relay.lower(mod)["main"]
    assert [int(d) for d in lowered.ret_ty.shape] == list(shape)


def test_parameters_depend_on_the_seed_alone():
    state = np.random.get_state()[1].tolist()  # noqa: NPY002
    (_, first), (_, second) = testing.mlp.get_workload(1), testing.mlp.get_workload(2)
    for name, value in first.items():
        np.testing.assert_array_equal(value.numpy(), second[name].numpy())
    assert np.random.get_state()[1].tolist() == state  # noqa: NPY002
    net = testing.mlp.get_net(1)
    other = testing.create_workload(net, seed=1)[1]
    assert (other["fc1_weight"].numpy() != first["fc1_weight"].numpy()).any()
    # The first draw after np.random.seed(0) is 0.5488135; Xavier's bound is sqrt(3 / mean fan).
    bound = np.sqrt(3 / ((784 + 128) / 2))
    assert first["fc1_weight"].numpy()[0, 0] == pytest.approx(bound * (2 * 0.5488135 - 1))
    assert not first["fc1_bias"].numpy().any()


def test_initial_values():
    rng = testing.init
    arrays = {n: np.full(4, 7.0) for n in ("a_bias", "a_gamma", "a_beta", "a_mean", "a_var")}
    for name, array in arrays.items():
        rng.Xavier()(name, array)
    assert [a[0] for a in arrays.values()] == [0, 1, 0, 0, 1]
    weight = np.zeros((2, 2))
    rng.Constant()("a_weight", weight)
    assert (weight == 0.25).all()
    depthwise = np.zeros((64, 1, 3, 3))
    rng.Xavier()("depthwise_weight", depthwise)
    assert 0.9 < np.abs(depthwise).max() / np.sqrt(3 / 9) <= 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: testing.resnet.get_workload(num_layers=19), "num_layers must be .*got 19"),
        (lambda: testing.resnet.get_workload(image_shape=(3, 28, 28)), "multiple of 6, got 18"),
        (lambda: testing.resnet.resnet([1], 2, [1], 1, (1, 3, 8, 8)), "resnet: 2 stages"),
        (lambda: testing.vgg.get_workload(1, num_layers=12), "vgg: num_layers"),
        (lambda: testing.squeezenet.get_workload(version="2"), "version must be .*got '2'"),
        (lambda: testing.densenet.get_workload(122), "densenet: size"),
        (lambda: testing.dcgan.get_workload(1, oshape=(3, 32, 32)), "64x64"),
        (lambda: testing.dcgan.get_workload(1, layout="CHWN"), "dcgan: layout"),
        (lambda: testing.mobilenet.get_workload(layout="CHWN"), "NCHW or NHWC, got 'CHWN'"),
        (lambda: testing.init.Xavier("gaussian"), "rnd_type must be 'uniform'"),
        (lambda: testing.init.Xavier(factor_type="x"), "factor_type must be"),
        (lambda: testing.init.Xavier()("a_weight", np.zeros(3)), "two axes or more"),
        (lambda: testing.init.Xavier()("a_thing", np.zeros(3)), "must end with .*'a_thing'"),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.share(3)
@pytest.mark.parametrize(
    "make",
    [
        lambda: testing.mlp.get_workload(2),
        lambda: testing.resnet.get_workload(
            num_layers=8, num_classes=5, image_shape=(3, 16, 16), batch_size=2
        ),
        lambda: testing.dcgan.get_workload(2, ngf=2, random_len=4),
    ],
    ids=["mlp", "resnet8", "dcgan"],
)
def test_small_ones_run(make):
    mod, params = make()
    shape = mod["main"].params[0].checked_type.concrete_shape
    lib = relay.build(mod, target="llvm", params=params)
    module = relay.graph_executor.GraphModule(lib["default"](tvm.cpu()))
    module.set_input("data", np.random.default_rng(0).standard_normal(shape).astype("float32"))
    module.run()
    out = module.get_output(0).numpy()
    assert out.shape == mod["main"].ret_type.concrete_shape
    assert np.isfinite(out).all()
    assert out.std() > 0
    if out.ndim == 2:
        np.testing.assert_allclose(out.sum(1), 1, rtol=1e-5)


def test_run_infer_type():
    x = relay.var("x", shape=(2, 3))
    assert testing.run_infer_type(relay.nn.relu(x)).checked_type == relay.TensorType((2, 3))
