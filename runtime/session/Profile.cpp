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

Result<std::unique_ptr<AtomicFile>> Profile::stage() const {
  auto microseconds = [](Clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); };
  nlohmann::json list = nlohmann::json::array();
  for (const Event &event : events) {
    const StepSpec &spec = event.step->spec;
    nlohmann::json shapes = nlohmann::json::array();
    for (const TensorType &type : spec.inputs)
      shapes.push_back(toString(type));
    list.push_back({{"name", spec.op},
                    {"cat", event.step->library},
                    {"ph", "X"},
                    {"pid", 1},
                    {"tid", 1},
                    {"ts", microseconds(event.begin - start)},
                    {"dur", microseconds(event.end - event.begin)},
                    {"args", {{"node", spec.name}, {"step", event.trainingStep}, {"inputs", std::move(shapes)}}}});
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
