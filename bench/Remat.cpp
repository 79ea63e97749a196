// Solves a graph of the recomputation benchmark, or a generated one: what bench/remat measures.
#include "passes/checkpoint/remat/Solver.h"
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iostream>
#include <optional>
#include <random>
#include <string>

using namespace recast::remat;

namespace {

/// Files give sizes and times with at most three decimals.
constexpr double kScale = 1000;
/// Of the bound that `min` is compared with: half a minute.
constexpr uint64_t kFloorEffort = 40'000'000;

/// One tensor for each node, as in the benchmark's files.
struct Graph {
  Problem problem;
  int add(int64_t bytes, int64_t cost, std::vector<int> reads) {
    int index = static_cast<int>(problem.nodes.size());
    problem.tensors.push_back({bytes * static_cast<int64_t>(kScale), false});
    problem.nodes.push_back({.cost = cost * static_cast<int64_t>(kScale),
                             .workspaceBytes = 0,
                             .canRepeat = true,
                             .reads = std::move(reads),
                             .writes = {index},
                             .overwrites = {}});
    return index;
  }
};

/// Transformer layers with their backward, sizes and times in the proportions of the benchmark's gpt graphs.
Problem gpt(int nodes) {
  Graph g;
  struct Layer {
    int input, norm, qkv, scores, softmax, dropout, heads, sum, norm2, hidden, gelu;
  };
  std::vector<Layer> layers(std::max(1, nodes / 34));
  int x = g.add(100, 1, {});
  for (Layer &l : layers) {
    l.input = x;
    l.norm = g.add(100, 1, {x});
    l.qkv = g.add(300, 12, {l.norm});
    l.scores = g.add(800, 6, {l.qkv});
    l.softmax = g.add(800, 3, {l.scores});
    l.dropout = g.add(800, 3, {l.softmax});
    l.heads = g.add(100, 6, {l.dropout, l.qkv});
    l.sum = g.add(100, 1, {x, g.add(100, 1, {g.add(100, 4, {l.heads})})});
    l.norm2 = g.add(100, 1, {l.sum});
    l.hidden = g.add(400, 16, {l.norm2});
    l.gelu = g.add(400, 2, {l.hidden});
    x = g.add(100, 1, {l.sum, g.add(100, 1, {g.add(100, 16, {l.gelu})})});
  }
  int dy = g.add(100, 1, {g.add(100, 5, {x})});
  for (auto it = layers.rbegin(); it != layers.rend(); ++it) {
    const Layer &l = *it;
    int drop = g.add(100, 1, {dy}), gelu = g.add(400, 16, {drop});
    g.add(1, 16, {drop, l.gelu});
    int hidden = g.add(400, 3, {gelu, l.hidden}), norm2 = g.add(100, 16, {hidden});
    g.add(1, 16, {hidden, l.norm2});
    int sum = g.add(100, 2, {norm2, l.sum, dy}), drop2 = g.add(100, 1, {sum}), heads = g.add(100, 4, {drop2});
    g.add(1, 4, {drop2, l.heads});
    int dropout = g.add(800, 6, {heads, l.qkv}), values = g.add(100, 6, {heads, l.dropout});
    int scores = g.add(800, 4, {g.add(800, 3, {dropout}), l.softmax}), keys = g.add(200, 12, {scores, l.qkv});
    int qkv = g.add(300, 1, {keys, values}), norm = g.add(100, 12, {qkv});
    g.add(1, 12, {qkv, l.norm});
    dy = g.add(100, 2, {norm, l.input, sum});
  }
  return g.problem;
}

Problem chain(int nodes) {
  Graph g;
  std::vector<int> forward = {g.add(1, 1, {})};
  while (static_cast<int>(forward.size()) < nodes / 2)
    forward.push_back(g.add(1, 1, {forward.back()}));
  int dy = g.add(1, 2, {forward.back()});
  for (int i = static_cast<int>(forward.size()) - 1; i-- > 0;)
    dy = g.add(1, 2, {dy, forward[i]});
  return g.problem;
}

/// Random layered: inputs near by mostly, sizes and times at random, and a backward that reads what the forward read.
Problem random(int nodes) {
  Graph g;
  std::mt19937_64 rng(1);
  auto below = [&](int bound) { return static_cast<int>(rng() % static_cast<uint64_t>(bound)); };
  auto add = [&](std::vector<int> reads) { return g.add(10 * (1 + below(800)), below(1000), std::move(reads)); };
  auto with = [](std::vector<int> list, int extra) {
    if (std::find(list.begin(), list.end(), extra) == list.end())
      list.push_back(extra);
    return list;
  };
  std::vector<std::vector<int>> reads = {{}};
  add({});
  for (int i = 1; i < nodes / 2; ++i) {
    std::vector<int> mine = {below(10) < 7 ? i - 1 : below(i)};
    for (int k = below(3); k > 0; --k)
      mine = with(mine, std::max(0, i - 1 - below(1 + below(120))));
    reads.push_back(mine);
    add(mine);
  }
  int dy = nodes / 2 - 1;
  for (int i = nodes / 2; i-- > 0;)
    dy = add(with(reads[i], dy));
  return g.problem;
}

/// "" or what is wrong.
std::string read(const std::string &path, Problem &problem) {
  std::ifstream file(path);
  int nodes = 0, edges = 0;
  if (!(file >> nodes >> edges) || nodes < 1 || edges < 0)
    return path + ": the first line must be the numbers of nodes and edges";
  problem.nodes.resize(nodes);
  problem.tensors.resize(nodes);
  for (int i = 0; i < nodes; ++i) {
    double bytes, cost;
    if (!(file >> bytes >> cost) || !(bytes >= 0) || !(cost >= 0))
      return path + ": node " + std::to_string(i) + " needs a line 'bytes cost', neither negative";
    problem.tensors[i].bytes = std::llround(bytes * kScale);
    problem.nodes[i].cost = std::llround(cost * kScale);
    problem.nodes[i].writes = {i};
  }
  for (int i = 0; i < edges; ++i) {
    int from, to;
    if (!(file >> from >> to) || from < 0 || from >= to || to >= nodes)
      return path + ": edge " + std::to_string(i) + " needs a line 'u v' with u before v";
    problem.nodes[to].reads.push_back(from);
  }
  return "";
}

void write(const std::string &path, const Problem &problem) {
  std::ofstream file(path);
  size_t edges = 0;
  for (const Node &node : problem.nodes)
    edges += node.reads.size();
  file << problem.nodes.size() << ' ' << edges << '\n';
  for (size_t i = 0; i < problem.nodes.size(); ++i)
    file << static_cast<double>(problem.tensors[i].bytes) / kScale << ' '
         << static_cast<double>(problem.nodes[i].cost) / kScale << '\n';
  for (size_t i = 0; i < problem.nodes.size(); ++i)
    for (int u : problem.nodes[i].reads)
      file << u << ' ' << i << '\n';
}

template <typename T> bool parse(std::string_view text, T &value) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

int usageError() {
  std::cerr
      << "usage: recast-remat GRAPH [PERCENT|min ...] [--moves=N] [--seconds=S] [--seed=N] [--schedules=PREFIX] "
         "[--write=FILE]\n"
         "GRAPH is a file of the benchmark, or gpt:N, chain:N, random:N with about N nodes. Larger budgets first: "
         "each starts from the one before.\nPrints a line for each budget; --schedules writes PREFIX.PERCENT with "
         "a line for each run, --write the graph.\n"
         "Example: recast-remat ResNet50_train.txt 90 50 min\n";
  return 2;
}

} // namespace

int main(int argc, char **argv) {
  SolverOptions options;
  std::vector<std::string> budgets;
  std::string schedules, graphFile;
  for (int i = 2; i < argc; ++i) {
    std::string_view flag = argv[i];
    double percent = 0;
    auto value = [&](std::string_view name) {
      return flag.starts_with(name) ? std::optional(flag.substr(name.size())) : std::nullopt;
    };
    bool isRight = true;
    if (auto moves = value("--moves="))
      isRight = parse(*moves, options.moves);
    else if (auto seconds = value("--seconds="))
      isRight = parse(*seconds, options.seconds) && options.seconds > 0;
    else if (auto seed = value("--seed="))
      isRight = parse(*seed, options.seed);
    else if (auto prefix = value("--schedules="))
      schedules = *prefix;
    else if (auto file = value("--write="))
      graphFile = *file;
    else if (flag == "min" || (parse(flag, percent) && percent > 0 && percent <= 100))
      budgets.emplace_back(flag);
    else
      isRight = false;
    if (!isRight)
      return usageError();
  }
  if (argc < 2)
    return usageError();
  std::string_view name = argv[1];
  size_t colon = name.find(':');
  std::string_view kind = name.substr(0, colon);
  Problem problem;
  if (int nodes = 0; colon != name.npos && parse(name.substr(colon + 1), nodes) && nodes >= 10 &&
                     (kind == "gpt" || kind == "chain" || kind == "random")) {
    problem = kind == "gpt" ? gpt(nodes) : kind == "chain" ? chain(nodes) : random(nodes);
  } else if (std::string message = read(argv[1], problem); !message.empty()) {
    std::cerr << "recast-remat: error: " << message << "\n";
    return 1;
  }
  if (!graphFile.empty())
    write(graphFile, problem);
  Usage plain = usage(problem, plainSchedule(problem));
  Solution solution;
  for (const std::string &text : budgets) {
    auto start = std::chrono::steady_clock::now();
    double percent = 0;
    int64_t budget;
    if (text == "min") {
      budget = floorBound(problem, kFloorEffort).bytes;
    } else {
      parse(std::string_view(text), percent);
      budget = static_cast<int64_t>(percent / 100 * static_cast<double>(plain.peakBytes));
    }
    Schedule before = solution.schedule;
    const Schedule *known = before.runs.empty() ? nullptr : &before;
    solution = text == "min" ? leastPeak(problem, options, known) : solve(problem, budget, options, known);
    std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::cout << text << " nodes " << problem.nodes.size() << " plain-peak " << plain.peakBytes << " plain-cost "
              << plain.cost << " budget " << budget << " peak " << solution.usage.peakBytes << " cost "
              << solution.usage.cost << " runs " << solution.schedule.runs.size() << " seconds " << seconds.count()
              << std::endl;
    if (!schedules.empty()) {
      std::ofstream file(schedules + "." + text);
      for (int run : solution.schedule.runs)
        file << run << '\n';
    }
  }
  return 0;
}
