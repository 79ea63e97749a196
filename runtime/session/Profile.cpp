#include "runtime/session/Profile.h"
#include <nlohmann/json.hpp>

namespace recast {

void Profile::observe(const StepEvent &event) {
  if (event.isBegin) {
    begins.push_back(Clock::now());
    return;
  }
  if (events.size() < kMostEvents)
    events.push_back({&event.plan.steps[event.step], trainingStep, begins.back(), Clock::now()});
  begins.pop_back();
}

void Profile::observe(const WorkEvent &event) {
  if (events.size() >= kMostEvents)
    return;
  auto after = [this](double seconds) {
    return stepBegin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  };
  events.push_back({event.step, trainingStep, after(event.begin), after(event.end), std::string(event.kernel),
                    event.stream, event.bytes, event.flops});
}

Result<std::unique_ptr<AtomicFile>> Profile::stage() const {
  auto microseconds = [](Clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); };
  nlohmann::json list = nlohmann::json::array();
  Step copies; // What is of no step.
  copies.spec.op = "copy";
  for (const Event &event : events) {
    const Step &step = event.step ? *event.step : copies;
    const StepSpec &spec = step.spec;
    nlohmann::json shapes = nlohmann::json::array();
    for (const TensorType &type : spec.inputs)
      shapes.push_back(toString(type));
    nlohmann::json args{{"node", spec.name}, {"step", event.trainingStep}, {"inputs", std::move(shapes)}};
    if (!event.kernel.empty()) {
      args.update({{"kernel", event.kernel}, {"bytes", event.bytes}, {"flops", event.flops}});
      if (auto operators = spec.attrs.getStrings("operators"); !operators.empty())
        args["operators"] = operators;
    }
    list.push_back({{"name", spec.op},
                    {"cat", step.library},
                    {"ph", "X"},
                    {"pid", 1},
                    {"tid", 1 + event.stream},
                    {"ts", microseconds(event.begin - start)},
                    {"dur", microseconds(event.end - event.begin)},
                    {"args", std::move(args)}});
  }
  nlohmann::json trace{{"traceEvents", std::move(list)}, {"displayTimeUnit", "ms"}};
  auto file = AtomicFile::create(path);
  if (!file)
    return file;
  Status status = (*file)->write(trace.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  if (!status.ok())
    return status;
  return file;
}

} // namespace recast
