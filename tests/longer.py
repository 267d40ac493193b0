"""The tests that `make test` leaves to `make test-all`, each by name and with a reason.

Whatever is not here runs in `make test`.  In `LONGER` a name is the beginning of a test's
identifier; in `SHARES` it is a test with many cases, of which some stay.
"""

CHILDREN = "starts processes of TVM; make test has others of the kind"
NETWORKS = "whole networks against PyTorch; make test has smaller ones of the same operators"
GROWTH = "programs long enough to tell linear time from quadratic"
MORE = "more cases of what make test has one of"

ADAPTED = "tests/byoc_cudnn/split/test_partition_adapt.py::test_random_problems_against_pytorch"
CUTLASS = "tests/byoc_cudnn/backends/cutlass"
DIRECT = "tests/byoc_cudnn/backends/cuda_direct"
EMULATED = "tests/byoc_cudnn/norm/test_norm_emulated.py::test_"
FUNCTIONAL = "tests/relay_wgrad/frontend/torch/test_functional.py::test_as_pytorch_makes_it"
ONNX = "tests/relay_wgrad/frontend/onnx"
PASSES = "tests/relay_wgrad/transform"
RELAY = "tests/relay_wgrad/relay"
RELAY_PASSES = "tests/relay_wgrad/relay/transform"
STABLEHLO = "tests/relay_wgrad/frontend/stablehlo/test_stablehlo.py::test_"
TORCH = "tests/relay_wgrad/torch"
TRAINING = "tests/relay_wgrad/training"

_SIX = ("densenet121", "inception_v2", "vgg19", "inception_v1", "zfnet512", "alexnet")
_EACH = (
    "tests/byoc_cudnn/split/test_partition_models.py::test_every_convolution_goes",
    f"{CUTLASS}/test_cutlass_models.py::test_every_convolution_but_of_small_groups_goes",
    f"{ONNX}/test_frontend_onnx.py::test_all_bundled_models_import_and_differentiate",
    f"{ONNX}/test_gradient_to_onnx.py::test_bundled_networks_by_onnxruntime",
)
_WINOGRAD = (  # problems whose kin stays
    "n=2 c=24 h=6 w=6 k=40", "n=2 c=31 h=7 w=19 k=16", "n=2 c=16 h=9 w=6 k=32",
)  # fmt: skip

LONGER = {
    **{
        f"{STABLEHLO}networks[{name}": NETWORKS
        for name in ("resnet", "resnext", "unet", "dcgan", "dilated", "mobile", "convnext")
    },
    **{
        f"tests/relay_wgrad/frontend/test_losses.py::test_value_and_gradient[{name}": MORE
        for name in ("smoothing", "a sum", "huber", "smooth l1", "l1")
    },
    **{
        f"tests/relay_wgrad/frontend/torch/test_torch_ops.py::test_{name}": MORE
        for name in ("group[products", "group[shapes", "group[random", "recurrent_layers")
    },
    **{
        f"tests/relay_wgrad/frontend/torch/test_open_batch.py::test_one_image_is_{name}": MORE
        for name in (
            "taken_where_it_is_the_same[one and",
            "taken_where_it_is_the_same[broadcast",
            "taken_where_it_is_the_same[heads",
            "refused_where_it_is_another_function[on several",
            "refused_where_it_is_another_function[all axes",
        )
    },
    **{
        f"tests/relay_wgrad/frontend/torch/test_dropout.py::test_every_kind[{name}]": MORE
        for name in ("1d", "3d", "function 2d", "function alpha", "heads", "encoder", "gru")
    },
    **{
        f"tests/relay_wgrad/ops/test_joined.py::test_two_orders[{name}": MORE
        for name in ("numbers", "a number first", "of a number", "all but the first")
    },
    **{
        f"{ONNX}/test_open_batch.py::test_views_along_the_batch[{name}": MORE
        for name in ("images-sizes", "images-negative", "images-copies")
    },
    **{
        f"{ONNX}/test_inference_mode.py::test_predicts_as_evaluated[{name}": MORE
        for name in ("norm", "dropout", "inference", "instances")
    },
    "tests/relay_wgrad/building/test_disk_cache.py::test_processes_at_once": CHILDREN,
    f"{TRAINING}/test_sizes.py::test_steps_of_several_sizes_are_those_of_one_each[momentum": MORE,
    f"{TRAINING}/test_open_batch.py::test_an_epoch_with_a_short_batch_is_pytorchs": MORE,
    "tests/relay_wgrad/cli/test_cli.py::test_inspect_measures": "measures; test_inspect stays",
    "tests/relay_wgrad/cli/test_cli.py::test_users_own_model": MORE,
    "tests/relay_wgrad/cli/test_cli_gpu.py::test_train": MORE,
    f"{DIRECT}/test_direct_codegen.py::test_nvcc_and_the_compiler_take_it": "compiles C++",
    "tests/relay_wgrad/pipeline/test_recompute.py::test_what_is_stored[a mask": MORE,
    f"{TORCH}/test_compiler_convolutions.py::test_values_and_gradients[plain": MORE,
    f"{TORCH}/test_torch_forward_mode.py::test_traced_with_symbolic_sizes": MORE,
    f"{TORCH}/test_training_step.py::test_evaluation_runs_forward_alone": MORE,
    f"{RELAY}/test_symbolic_runs.py::test_gradients_of_a_symbolic_batch": MORE,
    "tests/relay_wgrad/ops/test_batch_norm_numbers.py::test_second_order[Case(shape=(3, 2, 3, 2),"
    " dtype='float64', axis=1, activation='relu', residual=True": MORE,
    "tests/relay_wgrad/layout_rules/test_convert_layout_stock.py::test_same_numbers[tra": MORE,
    "tests/byoc_cudnn/tuning/test_own_backend_measured.py::test_its_candidates_are": MORE,
    f"{EMULATED}forward_and_backward[float32-shape0-together0-how0": MORE,
    "tests/byoc_cudnn/split/test_partition_adapt.py::test_transposed_convolutions_against": MORE,
    f"{ADAPTED}[ConvKind.FPROP]": MORE,  # dgrad's crops are tried each day
    f"{ADAPTED}[ConvKind.WGRAD]": MORE,
    "tests/byoc_cudnn/split/test_partition_products.py::test_half_precision[cudnn-False-a": MORE,
    "tests/relay_wgrad/transform/raising/test_raise_models.py::test_all_of_a_network[resnet50-2-st"
    "ock NHWC": MORE,
    "tests/relay_wgrad/transform/raising/test_raise_stock.py::test_compiled": MORE,
    "tests/legalize/test_generic_kernels.py::test_cuda_kernels_thread_by_thread[ConvKind.F": MORE,
    "tests/legalize/test_generic_kernels.py::test_expression[ConvKind.WGRAD": MORE,
    "tests/benchmarks/test_gpu_against.py::test_a_side_that_fails_is_an_error": CHILDREN,
    f"{TRAINING}/test_update.py::test_steps_are_pytorchs[momentum": MORE,
    f"{TRAINING}/test_sizes.py::test_steps_of_several_sizes_are_those_of_one_each[acc": MORE,
    **{f"{TRAINING}/test_sizes.py::test_axes_that_are_given[{seed}": MORE for seed in (1, 2)},
    "tests/relay_wgrad/frontend/torch/test_open_batch.py::test_value_and_gradient[steps1": MORE,
    "tests/relay_wgrad/frontend/torch/test_open_batch.py::test_the_same_as_of_a_number": MORE,
    f"{TRAINING}/test_partial.py::test_steps_are_pytorchs_with_the_others_frozen[module": MORE,
    f"{TRAINING}/test_cuda_step_source.py::test_an_update_becomes_device_code[acc": MORE,
    "tests/relay_wgrad/cli/test_cli_own_data.py::test_updates_and_parts": "two trainings",
    "tests/relay_wgrad/cli/test_cli_images.py::test_epochs": "the command line's training, thrice",
    f"{PASSES}/test_space_to_depth.py::test_random_problems": MORE,
    **{
        f"tests/relay_wgrad/frontend/test_relax_script.py::test_old_words[{name}": MORE
        for name in ("transposed", "product", "pool", "counted", "softmax", "conv")
    },
    **{
        f"{RELAY}/text/test_dialects.py::test_{name}": MORE
        for name in (
            "computes_what_it_meant[network",
            "computes_what_it_meant[scattered",
            "fixture[resnet8_cifar",
            "fixture[mobilenet",
            "fixture[mlp_grad",
            "fixture[smallnet_grad_nhwc",
            "operators[10",
            "operators[11",
            "operators[17",
            "operators[18",
        )
    },
    f"{TRAINING}/test_exits.py::test_a_process_ends": CHILDREN,
    "tests/relay_wgrad/frontend/test_volumes.py::test_trained_beside_pytorch": NETWORKS,
    f"{TORCH}/test_training_step_use.py::test_data_parallel": MORE,
    **{
        f"{TORCH}/test_compiler.py::test_{name}": MORE
        for name in ("steps_are", "batches_of", "channels_last")
    },
    f"{TORCH}/test_norms.py::test_compiled_here[half1": MORE,
    f"{TORCH}/test_compiler.py::test_exchanged_axes[False": MORE,
    **{
        f"{TORCH}/test_norms.py::test_numbers_and_what_is_found[{kind}-half1": MORE
        for kind in (
            "plain",
            "relu",
            "projected",
            "twice",
            "in place",
            "both",
            "shared sum",
            "scaled",
            "result twice",
            "statistics",
            "frozen",
            "sigmoid",
        )
    },
    f"{TORCH}/test_inductor.py::test_measured_choice": MORE,
    f"{TORCH}/test_compiler.py::test_steps_with_inductor": "compiles C++ by Inductor",
    f"{TORCH}/test_compiler.py::test_autocast_with_inductor": "compiles C++ by Inductor",
    **{
        f"tests/relay_wgrad/frontend/torch/test_torch_ops.py::test_group[{group}": MORE
        for group in ("sums", "indexing", "layers", "composed", "curves", "places", "math")
    },
    **{
        f"{STABLEHLO}values_and_gradients[{group}": MORE
        for group in ("places", "activations", "functions")
    },
    f"{DIRECT}/test_warps_emulated.py::test_special_values": MORE,
    f"{DIRECT}/test_strips.py::test_results_by_as_many_threads": "250 threads of a CPU a block",
    **{
        f"{DIRECT}/test_warps_races.py::test_what_is_left_out_is_found[{name}": MORE
        for name in ("grouped", "few", "first", "depthwise_shares", "depthwise_bands-ConvKind.W")
    },
    "tests/byoc_cudnn/updates/test_updates.py::test_a_kernel_is_the_rule[many": MORE,
    "tests/relay_wgrad/cli/test_cli.py::test_bench_of_a_model": "test_bench stays",
    "tests/relay_wgrad/ops/test_ties.py::test_a_share_of_the_generator": MORE,
    "tests/relay_wgrad/transform/layout/test_convert_layout.py"
    "::test_same_numbers_and_nothing_between[grouped_d": MORE,
    f"{TRAINING}/test_state.py::test_losses_go_on[adam": MORE,
    "tests/byoc_cudnn/norm/test_norm_races.py::test_a_barrier_that_is_left_out_is_found": MORE,
    f"{TORCH}/test_compiler_convolutions.py::test_values_and_gradients[o": MORE,
    f"{TORCH}/test_compiler_convolutions.py::test_numbers_that_are_sizes": MORE,
    f"{TORCH}/test_half_networks.py": MORE,
    f"{TORCH}/test_training_step.py::test_batch_statistics_without_gradients": MORE,
    **{
        f"tests/byoc_cudnn/norm/test_norm_races.py::test_{name}": MORE
        for name in (
            "there_are_none[forward_float32",
            "there_are_none[backward_",
            "a_barrier_that_is_left_out_is_found[forward",
        )
    },
    **{
        f"{EMULATED}{name}": MORE
        for name in (
            "forward_and_backward[float16",
            "forward_and_backward[float64",
            "forward_and_backward[float32-shape4",
            "forward_and_backward[float32-shape6",
            "forward_and_backward[float32-shape7",
            "forward_and_backward[bfloat16-shape5",
            "a_pooled_normalization_has_the_bits_of_both_apart",
        )
    },
    "tests/benchmarks/test_compile_steps.py::test_a_step": "whole networks for CUDA",
    "tests/fuzz/test_harness.py::test_every_end_is_told": "starts a process of TVM for each end",
    f"{TRAINING}/test_training.py::test_checkpoints_lower_the_planned_memory": NETWORKS,
    f"{TRAINING}/test_training.py::test_mixed_precision_and_checkpoints": NETWORKS,
    f"{DIRECT}/test_warps_emulated.py::test_many_random": MORE,
    f"{DIRECT}/test_warps_nvcc.py": "nvcc, of 37 kernels",
    "tests/byoc_cudnn/building/test_nvrtc.py::test_all_templates": "all families for four GPUs",
    "tests/byoc_cudnn/building/test_nvrtc.py::test_a_kernel": "NVRTC, five kernels twice",
    "tests/byoc_cudnn/building/test_nvrtc.py::test_a_call": "a child for each of five devices",
    f"{DIRECT}/test_direct_library.py::test_a_k": "a kernel by nvcc",
    f"{DIRECT}/test_direct_emulated.py::test_what_kernels_compute[wgrad n=1 c=103": "large blocks",
    "tests/byoc_cudnn/updates/test_updates.py::test_a_step_is_what_the_operators_give[adam": MORE,
    "tests/byoc_cudnn/updates/test_updates.py::test_a_trainer_updates_in_place": MORE,
    f"{TRAINING}/test_pipelined_training.py::test_a_gpu_keeps_weights_as_its_kernels": MORE,
    f"{PASSES}/layout/test_convert_layout.py::test_same_numbers_and_nothing_between[conv_bi": MORE,
    f"{PASSES}/layout/test_convert_layout.py::test_second_order": MORE,
    f"{PASSES}/layout/test_convert_layout.py::test_other_layouts": MORE,
    f"{PASSES}/test_raise_norm_step.py": NETWORKS,
    "tests/relay_wgrad/frontend/torch/test_torch_ops.py::test_each_row_is_compared": MORE,
    **{
        f"tests/relay_wgrad/frontend/torch/test_aot.py::test_gradients_of_each_op[{group}": MORE
        for group in (
            "activations",
            "indexing",
            "layers",
            "math",
            "products",
            "resizing",
            "shapes",
            "sums",
            "volumes",
        )
    },
    **{
        f"tests/relay_wgrad/frontend/torch/test_aot.py::test_nets[{name}": MORE
        for name in ("evaluated", "volumes", "windows")
    },
    "tests/relay_wgrad/cli/test_cli_files.py::test_an_interrupt_while_training": CHILDREN,
    "tests/relay_wgrad/cli/test_cli_files.py::test_a_closed_output[emit": CHILDREN,
    "tests/relay_wgrad/cli/test_cli_files.py::test_a_reader_of_a_program": CHILDREN,
    "tests/fuzz/test_harness.py::test_one_kind_and_one_line": CHILDREN,
    "tests/relay_wgrad/test_registry.py::test_never_registered": CHILDREN,
    "tests/relay_wgrad/test_registry.py::test_a_rule_registered_above_ours_stays": CHILDREN,
    "tests/relay_wgrad/test_registry.py::test_an_op_that_is_taken_is_refused": CHILDREN,
    f"{RELAY}/test_constants.py::test_arguments_of_the_run_end_no_process": CHILDREN,
    "tests/benchmarks/test_compile_steps.py::test_a_child": CHILDREN,
    "tests/benchmarks/test_networks.py::test_check_of_onnx": "test_check stays, and the table",
    "tests/benchmarks/test_networks.py::test_check_of_an_open": "test_check stays",
    "tests/benchmarks/test_networks.py::test_train": "a training; the other modes stay",
    "tests/relay_wgrad/frontend/torch/test_torch_ops.py::test_group[resizing]": MORE,
    **{
        f"{FUNCTIONAL}[{group}": MORE
        for group in ("math", "resizing", "products", "indexing", "sums")
    },
    "tests/byoc_cudnn/building/test_toolchain.py::test_preload_lets_tvm_load_its_cuda": CHILDREN,
    "tests/relay_wgrad/pipeline/test_cpu_pipeline.py::test_a_training_step_has_no": NETWORKS,
    f"{TRAINING}/test_resnet50.py": NETWORKS,
    f"{TRAINING}/test_training_networks.py": NETWORKS,
    f"{TRAINING}/test_cuda_step_source.py::test_a_whole_step_becomes_device_code[adam": MORE,
    f"{TRAINING}/test_cuda_step_source.py::test_a_whole_step_becomes_device_code[sgd": MORE,
    f"{PASSES}/layout/test_layout_equality.py::test_squeezenet_in_both_layouts": NETWORKS,
    f"{ONNX}/test_frontend_onnx.py::test_step_is_pytorchs[resnet50": NETWORKS,
    f"{ONNX}/test_frontend_onnx.py::test_step_is_pytorchs[shufflenet": NETWORKS,
    f"{RELAY_PASSES}/test_gradient.py::test_networks_of_which_relay_has_none[mobilenet": NETWORKS,
    f"{RELAY_PASSES}/test_convert_layout.py::test_a_converted_network_runs": NETWORKS,
    f"{RELAY_PASSES}/test_partition_passes.py::test_from_text_to_numbers[resnet8": NETWORKS,
    **{f"{test}[{name}": MORE for test in _EACH for name in _SIX},
    f"{CUTLASS}/test_cutlass_models.py::test_every_convolution_but_of_small_groups_goes[shuf": MORE,
    f"{ONNX}/test_frontend_onnx.py::test_step_is_pytorchs[squeezenet": NETWORKS,
    f"{ONNX}/test_frontend_onnx.py::test_squeezenet_forward_is_onnx_own": NETWORKS,
    f"{RELAY}/test_lower.py::test_outputs_of_real_relay[resnet8_cifar_grad": NETWORKS,
    f"{PASSES}/layout/test_layout_equality.py::test_relays_networks_in_both_layouts[resn": NETWORKS,
    "tests/relay_wgrad/cli/test_cli.py::test_train": "what make demo does; smaller models are left",
    f"{RELAY}/text/test_text_round_trip.py::test_ten_megabytes": GROWTH,
    f"{RELAY}/text/test_text_round_trip.py::test_linear": GROWTH,
    f"{RELAY_PASSES}/test_partition_passes.py::test_linear_time": GROWTH,
    f"{RELAY}/dataflow_pattern/test_pattern_partition.py::test_linear_time": GROWTH,
    f"{RELAY}/test_builders_expr.py::test_long_chains_are_built_and_printed": GROWTH,
    f"{RELAY_PASSES}/test_gradient.py::test_depth_costs_no_stack_and_linear_time": GROWTH,
    f"{RELAY_PASSES}/test_convert_layout.py::test_time_is_linear_and_depth_costs_no_stack": GROWTH,
    f"{RELAY}/test_infer.py::test_depth_costs_no_stack_and_linear_time": GROWTH,
    f"{RELAY_PASSES}/test_raise_relay_limits.py::test_time_is_linear": GROWTH,
    f"{PASSES}/raising/test_raise_models.py::test_time_is_linear": GROWTH,
    f"{PASSES}/raising/test_raise_models.py::test_long_chains": GROWTH,
    f"{PASSES}/layout/test_convert_layout_models.py::test_time_is_linear_in_depth": GROWTH,
    f"{PASSES}/layout/test_convert_layout_models.py::test_gradients_time_is_linear": GROWTH,
    f"{RELAY}/dataflow_pattern/test_pattern_partition.py::test_long_programs": GROWTH,
    f"{RELAY}/test_lower.py::test_depth_costs_no_stack_and_linear_time": GROWTH,
    "tests/relay_wgrad/inspection/test_draw.py::test_the_limit": GROWTH,
    "tests/byoc_cudnn/split/test_partition_models.py::test_time_is_linear_in_depth": GROWTH,
    f"{TORCH}/test_torch_cache.py::test_memory_is_given_back[20-100]": MORE,
    f"{TORCH}/test_torch_use.py::test_data_parallel": "needs several processes of PyTorch",
    f"{TRAINING}/test_training.py::test_checkpoints_and_layout_change_nothing": NETWORKS,
    "tests/relay_wgrad/pipeline/test_cuda_step.py::test_step_in_half_precision": NETWORKS,
    **{f"{TORCH}/test_torch.py::test_random_configurations[{i}]": MORE for i in range(4, 10)},
    **{
        f"tests/legalize/cpu/test_winograd.py::test_edges[{kind} {problem}": MORE
        for kind in ("fprop", "dgrad", "wgrad")
        for problem in _WINOGRAD
    },
    "tests/relay_wgrad/layout_rules/test_convert_layout_stock.py::test_same_numbers[pools": MORE,
    "tests/fuzz/test_fuzz_share.py::test_share[0]": MORE,
    "tests/fuzz/test_fuzz_share.py::test_share[5]": MORE,
    "tests/fuzz/test_fuzz_share.py::test_share[10]": MORE,
    "tests/fuzz/test_fuzz_share.py::test_share[15]": MORE,
    "tests/fuzz/test_fuzz_share.py::test_share[20]": MORE,
    f"{PASSES}/layout/test_convert_layout.py::test_symbolic_batch": MORE,
    f"{PASSES}/layout/test_layout_equality.py::test_is_relays_network[resnet8": NETWORKS,
    "tests/relay_wgrad/cli/test_cli_own_data.py::test_own_model_and_data": MORE,
    "tests/relay_wgrad/cli/test_cli.py::test_reader_that_leaves": CHILDREN,
    "tests/relay_wgrad/cli/test_cli_files.py::test_a_closed_output[env": CHILDREN,
    "tests/relay_wgrad/test_threads.py::test_at_the_end_of_a_process": CHILDREN,
    f"{RELAY}/test_constants.py::test_memory_that_is_not_there_is_told": CHILDREN,
    "tests/fuzz/test_fuzz_share.py::test_planted_fault_is_found": "tests.planted has its kin",
    "tests/legalize/test_quotient.py::test_a_share_of_the_generator": MORE,
    f"{TRAINING}/test_training.py::test_loss_scale_saves_small_gradients": NETWORKS,
    f"{TRAINING}/test_partial.py::test_other_parameters_are_trained": "three trainings",
    f"{TRAINING}/test_update.py::test_steps_are_pytorchs[adamw": MORE,
    f"{TORCH}/test_torch_use.py::test_compile[False": MORE,
    f"{TORCH}/test_training_step.py::test_two_steps_side_by_side": MORE,
    "tests/relay_wgrad/frontend/torch/test_torch_ops.py::test_group[volumes": MORE,
    "tests/relay_wgrad/inspection/test_inspection.py::test_blocks_of_real_networks": NETWORKS,
    "tests/relay_wgrad/ops/test_ties.py::test_every_relax_op_at_its_kinks[stock": MORE,
    "tests/benchmarks/test_gpu_against.py::test_sides_compute_the_same": NETWORKS,
    "tests/byoc_cudnn/updates/test_updates.py::test_a_step_is_what_the_operators_give[mom": MORE,
    f"{RELAY_PASSES}/test_gradient.py::test_networks_of_which_relay_has_none[dcgan": NETWORKS,
    f"{RELAY}/ops/test_ops_fixtures.py::test_results_are_those_of_real_relay[resnet8": NETWORKS,
    "tests/benchmarks/test_digits_curves.py": "two trainings; the examples have one",
    "tests/test_wheel.py": "builds, and installs all dependencies anew",
    f"{CUTLASS}/test_cutlass_codegen.py::test_six_kernels": MORE,
    f"{CUTLASS}/test_cutlass_codegen.py::test_both_libraries_in_one": MORE,
    f"{CUTLASS}/test_cutlass_codegen.py::test_a_library_for_two_gpus": MORE,
}

CPU = "tests/legalize/cpu"

SHARES = {
    # Of a test with many cases, `make test` runs each n-th and `make test-all` all of them.  The
    # numbers share no factor with those of kinds, layouts or dtypes that take turns, so that what
    # stays has all of these.
    f"{CPU}/test_cpu_kernels.py::test_edges": 5,
    f"{CPU}/test_cpu_kernels.py::test_images_are_copied_in_parts": 5,
    f"{CPU}/test_cpu_kernels.py::test_random": 5,
    f"{CPU}/test_cpu_kernels.py::test_symbolic_batch": 5,
    f"{CPU}/test_depthwise_lines.py::test_right_numbers": 5,
    f"{CPU}/test_wgrad_packed.py::test_every_plan": 5,
    f"{CPU}/test_wgrad_packed.py::test_units_and_chunks": 5,
    f"{CPU}/test_wgrad_packed.py::test_random": 5,
    f"{CPU}/test_winograd.py::test_edges": 5,
    "tests/legalize/test_generic_kernels.py::test_cuda_tiles_and_splits": 5,
    "tests/legalize/test_composite_numbers.py::test_numbers": 5,
    "tests/legalize/test_pooling.py::test_max_pool2d_backward": 4,
    f"{RELAY}/gradients/test_gradient_rules.py::test_gradient_is_the_slope": 5,
    f"{RELAY}/ops/test_ops_numeric.py::test_gradient_is_the_slope": 5,
    f"{RELAY}/ops/test_ops_fixtures.py::test_results_are_those_of_real_relay": 3,
    f"{RELAY}/test_lower.py::test_outputs_of_real_relay": 2,
    f"{STABLEHLO}random_convolutions": 3,
    f"{ONNX}/test_frontend_onnx_ops.py::test_op": 3,
    f"{ONNX}/test_frontend_onnx_curves.py::test_row": 3,
    f"{ONNX}/test_onnx_node_tests.py::test_node": 3,
    f"{TORCH}/test_torch_forward_mode.py::test_all": 5,
    f"{CPU}/test_cpu_kernels.py::test_targets": 5,
    f"{CPU}/test_winograd.py::test_targets": 5,
    f"{CPU}/test_depthwise_lines.py::test_symbolic_batch": 5,
    "tests/legalize/test_extrema.py::test_special_values": 3,
    "tests/relay_wgrad/conventions/test_keras_parity.py::test_kernels": 5,
    "tests/relay_wgrad/pipeline/test_recompute.py::test_what_is_stored": 4,
    "tests/byoc_cudnn/split/test_partition_models.py::test_every_convolution_goes": 2,
    f"{PASSES}/raising/test_raise_models.py::test_all_of_a_network": 2,
    f"{PASSES}/layout/test_convert_layout_models.py::test_boundary_only": 3,
    "tests/relay_wgrad/pipeline/test_reduction_init.py::test_sizes_of_the_run": 3,
    "tests/relay_wgrad/pipeline/test_reduction_init.py::test_sizes_that_are_known": 3,
    "tests/relay_wgrad/test_conditions.py::test_the_run_refuses_in_the_rules_words": 3,
    "tests/relay_wgrad/relay/test_nothing_at_the_run.py::test_known_sizes_give_the_same": 2,
    f"{PASSES}/layout/test_convert_layout.py::test_same_numbers_and_nothing_between": 2,
    f"{PASSES}/test_grad.py::test_orders_against_pytorch": 5,
    f"{TRAINING}/test_training.py::test_default_learning_rates": 3,
    f"{TRAINING}/test_state.py::test_losses_go_on": 2,
    f"{RELAY}/test_testing.py::test_small_ones_run": 3,
    f"{TORCH}/test_torch_calls.py::test_same_results_as_the_operators": 3,
    "tests/relay_wgrad/ops/test_batch_norm_numbers.py::test_values_and_gradients": 3,
    "tests/relay_wgrad/ops/test_batch_norm_numbers.py::test_second_order": 3,
    "tests/relay_wgrad/ops/test_ties.py::test_norms_losses_and_reductions": 3,
    "tests/legalize/test_generic_kernels.py::test_expression": 2,
    "tests/legalize/test_generic_kernels.py::test_cuda_kernels_thread_by_thread": 3,
    "tests/legalize/test_generic_kernels.py::test_cuda_compiles": 3,
    "tests/legalize/test_generic_kernels.py::test_cpu_schedule": 3,
    "tests/relay_wgrad/frontend/torch/test_frontend_torch.py::test_training_step_is_pytorchs": 2,
    "tests/byoc_cudnn/backends/cudnn/test_emit.py::test_reference": 5,
    "tests/byoc_cudnn/backends/cudnn/test_emit.py::test_programs_build": 3,
}
