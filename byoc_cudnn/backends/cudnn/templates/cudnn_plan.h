// ---- engines, their settings, and plans -------------------------------------------------------------

namespace {

constexpr int kLastResort = 2;

// An engine with its settings, in numbers that survive the process.
struct Choice {
  int64_t engine = -1;
  std::vector<std::pair<int64_t, int64_t>> knobs;
  // Which list suggested it: 0, 1, and kLastResort for what no other engine takes.  Part of no key.
  int list = 0;
  bool operator==(const Choice& o) const { return engine == o.engine && knobs == o.knobs; }

  std::string text() const {
    std::string out = std::to_string(engine) + ":";
    for (const auto& knob : knobs) {
      out += (out.back() == ':' ? "" : ",") + std::to_string(knob.first) + "=" +
             std::to_string(knob.second);
    }
    return out;
  }

  // The inverse of text(); false for anything else.
  static bool parse(const std::string& text, Choice* out) {
    const char* at = text.c_str();
    auto number = [&at](int64_t* value) {
      char* end = nullptr;
      errno = 0;
      if (!std::isdigit(static_cast<unsigned char>(*at))) return false;
      *value = std::strtoll(at, &end, 10);
      at = end;
      return errno == 0;
    };
    *out = Choice();
    if (!number(&out->engine) || *at++ != ':') return false;
    while (*at != 0) {
      int64_t type, value;
      if (!number(&type) || *at++ != '=' || !number(&value)) return false;
      out->knobs.emplace_back(type, value);
      // A comma must be followed by another knob.
      if (out->knobs.size() > 64 || (*at != 0 && (*at++ != ',' || *at == 0))) return false;
    }
    return true;
  }
};

struct Plan {
  Descriptor descriptor;
  int64_t workspace;  // bytes
};

// Notes of an engine that rule it out for a convolution.
inline bool refused(const Conv& conv, const cudnnBackendNumericalNote_t* notes, int64_t count) {
  const bool single = conv.data == CUDNN_DATA_FLOAT;
  for (int64_t i = 0; i < count; ++i) {
    switch (notes[i]) {
      case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:  // sums are float32's, always
        return true;
      case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
        if (single) return true;
        break;
      case CUDNN_NUMERICAL_NOTE_TENSOR_CORE:  // of float32 operands: tf32
        if (single && !(conv.options & kAllowTf32)) return true;
        break;
      case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
        if (conv.options & kDeterministic) return true;
        break;
      case CUDNN_NUMERICAL_NOTE_FFT:  // whose sums of float16 operands are in float16, or larger
      case CUDNN_NUMERICAL_NOTE_WINOGRAD:
      case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4:
      case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6:
      case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13:
        if (is_scaled(conv)) return true;
        break;
      default:
        break;
    }
  }
  return false;
}

inline Descriptor make_engine(const Graph& graph, int64_t index) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR, "engine " + std::to_string(index));
  engine.set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph.get())
      .set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, index)
      .finalize();
  return engine;
}

// The engine of a choice may not fit the graph (another version's record): then this throws.
inline bool allowed(const Conv& conv, const Descriptor& engine) {
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  int64_t count = 0;
  check(cudnnBackendGetAttribute(engine.get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                 CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count,
                                 notes),
        "reading an engine's notes");
  if (refused(conv, notes, count)) return false;
  if (!(conv.epilogue & (kMask | kStrictMask))) return true;
  // Engines that were compiled beforehand take the mask's comparison for something else: measured
  // on an H200 with cuDNN 9.19, they return wrong numbers without an error.
  cudnnBackendBehaviorNote_t behavior[CUDNN_BEHAVIOR_NOTE_TYPE_COUNT];
  check(cudnnBackendGetAttribute(engine.get(), CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE,
                                 CUDNN_TYPE_BEHAVIOR_NOTE, CUDNN_BEHAVIOR_NOTE_TYPE_COUNT, &count,
                                 behavior),
        "reading an engine's behavior");
  return std::find(behavior, behavior + count, CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) !=
         behavior + count;
}

inline Plan make_plan(cudnnHandle_t handle, const Conv& conv, const Graph& graph,
                      const Choice& choice, int64_t limit) {
  const Descriptor engine = make_engine(graph, choice.engine);
  if (!allowed(conv, engine)) throw Failure{"ruled out: its arithmetic is not what was asked for"};
  std::vector<Descriptor> knobs;
  std::vector<cudnnBackendDescriptor_t> handles;
  for (const auto& knob : choice.knobs) {
    Descriptor d(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, "a knob");
    d.set(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE,
          static_cast<cudnnBackendKnobType_t>(knob.first))
        .set(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, knob.second)
        .finalize();
    handles.push_back(d.get());
    knobs.push_back(std::move(d));
  }
  Descriptor config(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "the engine's settings");
  config.set(CUDNN_ATTR_ENGINECFG_ENGINE, engine);
  if (!handles.empty()) {
    config.set(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
               static_cast<int64_t>(handles.size()), handles.data());
  }
  config.finalize();
  Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "the plan");
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle)
      .set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config)
      .finalize();
  int64_t workspace = 0, count = 0;
  check(cudnnBackendGetAttribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                 CUDNN_TYPE_INT64, 1, &count, &workspace),
        "reading a plan's workspace");
  if (workspace > limit) {
    throw Failure{"a workspace of " + std::to_string(workspace) + " bytes is over the limit of " +
                  std::to_string(limit)};
  }
  return {std::move(plan), workspace};
}

inline Choice read_choice(cudnnBackendDescriptor_t config) {
  Choice choice;
  int64_t count = 0;
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR, "an engine");
  cudnnBackendDescriptor_t handle = engine.get();
  check(cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                 1, &count, &handle),
        "reading a suggestion's engine");
  check(cudnnBackendGetAttribute(handle, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1,
                                 &count, &choice.engine),
        "reading an engine's index");
  std::vector<Descriptor> knobs;
  std::vector<cudnnBackendDescriptor_t> handles;
  for (int i = 0; i < CUDNN_KNOB_TYPE_COUNTS; ++i) {
    knobs.emplace_back(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, "a knob");
    handles.push_back(knobs.back().get());
  }
  check(cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, CUDNN_KNOB_TYPE_COUNTS, &count,
                                 handles.data()),
        "reading an engine's settings");
  for (int64_t i = 0; i < count; ++i) {
    cudnnBackendKnobType_t type;
    int64_t value = 0, one = 0;
    check(cudnnBackendGetAttribute(handles[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
                                   CUDNN_TYPE_KNOB_TYPE, 1, &one, &type),
          "reading a knob");
    check(cudnnBackendGetAttribute(handles[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64,
                                   1, &one, &value),
          "reading a knob");
    choice.knobs.emplace_back(static_cast<int64_t>(type), value);
  }
  return choice;
}

// What cuDNN suggests, best guess first, without repetition.
inline std::vector<Choice> suggestions(const Graph& graph, bool many) {
  std::vector<Choice> out;
  std::vector<cudnnBackendHeurMode_t> modes = {CUDNN_HEUR_MODE_A};
  if (many) modes.push_back(CUDNN_HEUR_MODE_B);
  modes.push_back(CUDNN_HEUR_MODE_FALLBACK);
  for (cudnnBackendHeurMode_t mode : modes) {
    try {
      Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "the heuristics");
      heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.get())
          .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode)
          .finalize();
      int64_t count = 0;
      check(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                     CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr),
            "counting suggestions");
      std::vector<Descriptor> configs;
      std::vector<cudnnBackendDescriptor_t> handles;
      for (int64_t i = 0; i < count; ++i) {
        configs.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "a suggestion");
        handles.push_back(configs.back().get());
      }
      check(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                     CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, handles.data()),
            "reading suggestions");
      for (int64_t i = 0; i < count; ++i) {
        Choice choice = read_choice(handles[i]);
        choice.list = mode == CUDNN_HEUR_MODE_A ? 0 : mode == CUDNN_HEUR_MODE_B ? 1 : kLastResort;
        if (std::find(out.begin(), out.end(), choice) == out.end()) out.push_back(choice);
      }
    } catch (const Failure&) {
      // A mode that knows nothing of this graph leaves it to the others.
    }
  }
  return out;
}

}  // namespace
