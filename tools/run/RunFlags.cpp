#include "tools/run/RunFlags.h"
#include "runtime/ranks/Join.h"
#include <algorithm>
#include <charconv>
#include <cstdio>

namespace recast::tools {

int failRun(const std::string &tool, const std::string &text) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s: error: %s\n", tool.c_str(), text.c_str());
  return kFailed;
}

RunFlags::RunFlags(const ToolText &text)
    : app(text.overview + "\nExit status: 0 done; 1 the model, the data or the run is wrong; 2 wrong usage.\n",
          text.name),
      tool(text.name) {
  app.footer("EXAMPLE:\n" + text.example);
  app.set_version_flag("--version", "recast " RECAST_VERSION);
  app.get_formatter()->column_width(38);
  app.add_option(text.argument, model, text.argumentText)->required()->type_name("");
  addDataFlags();
  addRunFlags();
}

void RunFlags::addDataFlags() {
  app.add_option("--data", data.path,
                 "Tensors named as the graph's inputs: .safetensors, .npz, .npy, a folder of .npy, or a .bin token "
                 "stream (16-bit)")
      ->type_name("FILE");
  app.add_option("--data-layout", layout,
                 "What the tensors of --data are: samples (axis 0 indexes samples; default), batches (axis 0 indexes "
                 "ready batches) or single (one batch, used at every step)")
      ->type_name("LAYOUT");
  app.add_option("--batch-size", data.batchSize, "Samples a batch (default: the model's, else 32)")->type_name("N");
  app.add_flag("--shuffle", data.shuffle, "A new order of the samples every epoch");
  app.add_option("--seed", data.seed, "Of --shuffle (default 0)")->type_name("N");
  app.add_flag("--drop-last", data.dropLast, "Leave out an epoch's last batch if it is smaller");
  app.add_option("--epochs", session.epochs, "Times through the data (default 1)")->type_name("N");
  app.add_option("--steps", session.steps, "Steps to run; the data starts again where it ends")->type_name("N");
}

void RunFlags::addRunFlags() {
  app.add_option("--state-in", session.stateIn, "Start from this state (safetensors)")->type_name("FILE");
  app.add_option("--state-out", session.stateOut, "Write the state at the end (safetensors)")->type_name("FILE");
  app.add_option("--checkpoint-every", session.checkpointEvery, "Steps between checkpoints")->type_name("N");
  app.add_option("--checkpoint-dir", session.checkpointDir, "Where checkpoints are")->type_name("FOLDER");
  app.add_flag("--resume", session.resume, "Go on from the latest checkpoint, bit for bit");
  app.add_option("--outputs", session.outputs,
                 "Write every graph output of every step, stacked on a new axis 0 (safetensors)")
      ->type_name("FILE");
  app.add_option("--metrics", session.metrics, "Log a JSON line a step; a folder gets TensorBoard events")
      ->type_name("FILE.jsonl|FOLDER");
  app.add_option("--lr-schedule", session.schedule.kind,
                 "How the learning rate changes with the optimizer steps, skipped ones included; a file has a number "
                 "for every step (default: constant)")
      ->type_name("constant|linear|cosine|FILE");
  app.add_option("--warmup-steps", session.schedule.warmupSteps,
                 "Optimizer steps over which the learning rate rises from 0")
      ->type_name("N");
  app.add_option("--min-lr", session.schedule.minLr, "Where linear and cosine end (default 0)")->type_name("RATE");
  app.add_option("--device", device,
                 "Where to run (default: cpu); check: the CUDA plan on this processor, every command checked (slow)")
      ->type_name("cpu|cuda[:N]|check");
  app.add_option("--threads", threadsArg, "Threads to use (default: all)")->type_name("N");
  app.add_option("--profile", session.profile, "Write a Chrome trace of the kernels")->type_name("FILE.json");
  app.add_flag("--find-nonfinite", session.findNonFinite,
               "In each step that has one, name the node that first made a value infinite or NaN (slow)");
  app.add_flag("--explain", explain, "Print the plan (every step, its kernel, its buffers) and run nothing");
}

std::optional<int> RunFlags::parse(int argc, char **argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success &done) { // --help, --version
    return app.exit(done);
  } catch (const CLI::ParseError &error) {
    return wrong(error.what());
  }
  if (app.count("--data"))
    session.data = data;
  threads = static_cast<int>(std::min<int64_t>(threadsArg, 4096));
  if (std::string text = problem(); !text.empty())
    return wrong(text);
  return std::nullopt;
}

int RunFlags::deviceOrdinal() const {
  int ordinal = std::max(findLauncher() == Launcher::None ? 0 : localRank(), 0);
  if (size_t colon = device.find(':'); colon != std::string::npos)
    std::from_chars(device.data() + colon + 1, device.data() + device.size(), ordinal);
  return ordinal;
}

int RunFlags::wrong(const std::string &message) const {
  std::fprintf(stderr, "%s: %s; see --help\n", tool.c_str(), message.c_str());
  return kUsage;
}

/// What is wrong with the flags, or nothing.
std::string RunFlags::problem() {
  struct Number {
    const char *flag;
    int64_t value, least;
  };
  for (auto [flag, value, least] :
       {Number{"--batch-size", data.batchSize, 1}, Number{"--epochs", session.epochs.value_or(1), 1},
        Number{"--steps", session.steps.value_or(0), 0}, Number{"--checkpoint-every", session.checkpointEvery, 1},
        Number{"--warmup-steps", session.schedule.warmupSteps, 0}, Number{"--threads", threadsArg, 1}})
    if (app.count(flag) && value < least)
      return std::string(flag) + " must be at least " + std::to_string(least);
  bool isIndexed = device.starts_with("cuda:") && device.size() > 5 &&
                   device.find_first_not_of("0123456789", 5) == std::string::npos;
  if (device != "cpu" && device != "cuda" && device != "check" && !isIndexed)
    return "--device takes 'cpu', 'cuda', 'cuda:N' or 'check'";
  if (std::string text = dataProblem(); !text.empty())
    return text;
  const ScheduleOptions &schedule = session.schedule;
  if (app.count("--min-lr") && !(schedule.minLr >= 0))
    return "--min-lr must be at least 0";
  if (app.count("--min-lr") && schedule.kind != "linear" && schedule.kind != "cosine")
    return "--min-lr is where --lr-schedule=linear and cosine end: it needs one of them";
  if ((session.checkpointEvery || session.resume) && session.checkpointDir.empty())
    return "--checkpoint-every and --resume need --checkpoint-dir";
  return "";
}

std::string RunFlags::dataProblem() {
  if (layout != "samples" && layout != "batches" && layout != "single")
    return "--data-layout takes 'samples', 'batches' or 'single'";
  if (session.data) {
    session.data->layout = layout == "single"    ? DataLayout::Single
                           : layout == "batches" ? DataLayout::Batches
                                                 : DataLayout::Samples;
    return "";
  }
  for (const char *flag : {"--data-layout", "--batch-size", "--shuffle", "--drop-last", "--epochs"})
    if (app.count(flag))
      return std::string(flag) + " needs --data";
  return "";
}

} // namespace recast::tools
