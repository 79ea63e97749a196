// Checks a certificate of passes/checkpoint/bound against a problem, in exact integers and with nothing of the code
// that made it. It builds the rows that every schedule keeps (passes/checkpoint/bound/README.md says why each holds),
// and follows the proof's cases: propagation through rows, then for each proof weak duality and the columns that it
// fixes.
#include <algorithm>
#include <fstream>
#include <iostream>
#include <map>

#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using Wide = __int128;
struct Node {
  int64_t cost = 0, workspace = 0;
  bool canRepeat = true;
  std::vector<int> reads, writes, overwrites;
};
struct Problem {
  std::vector<Node> nodes;
  std::vector<int64_t> bytes;
  std::vector<char> isKept;
  std::vector<int> writers;
};
struct Row {
  Wide rhs = 0;
  std::vector<std::pair<int, Wide>> terms; // Of columns; the sum is at least rhs.
};
using Box = std::vector<char>; // By column: 0, 1, or 2 for either.
constexpr int kZero = -1, kOne = -2;

bool has(const std::vector<int> &list, int item) { return std::ranges::find(list, item) != list.end(); }

void require(bool holds, const std::string &what) {
  if (!holds)
    throw std::runtime_error(what);
}

template <typename T> T next(std::istream &in) {
  T item{};
  require(static_cast<bool>(in >> item), "the file ends early, or has a word where a number belongs");
  return item;
}

std::vector<int> nextList(std::istream &in, int limit) {
  std::vector<int> list(next<uint16_t>(in));
  for (int &item : list)
    require((item = next<int>(in)) >= 0 && item < limit, "an index is out of range");
  std::ranges::sort(list);
  list.erase(std::unique(list.begin(), list.end()), list.end());
  return list;
}

Problem readProblem(std::istream &in) {
  require(next<std::string>(in) == "recast-remat", "the problem does not begin with 'recast-remat'");
  Problem p;
  p.nodes.resize(next<int>(in));
  p.bytes.resize(next<int>(in));
  p.isKept.resize(p.bytes.size());
  p.writers.assign(p.bytes.size(), -1);
  int tensors = static_cast<int>(p.bytes.size());
  for (int t = 0; t < tensors; ++t) {
    require((p.bytes[t] = next<int64_t>(in)) >= 0, "bytes are negative");
    p.isKept[t] = next<int>(in) != 0;
  }
  for (size_t v = 0; v < p.nodes.size(); ++v) {
    Node &node = p.nodes[v];
    node.cost = next<int64_t>(in);
    node.workspace = next<int64_t>(in);
    node.canRepeat = next<int>(in) != 0;
    node.reads = nextList(in, tensors);
    node.writes = nextList(in, tensors);
    node.overwrites = nextList(in, tensors);
    require(node.cost >= 0 && node.workspace >= 0, "a cost is negative");
    for (int t : node.reads)
      require(p.writers[t] >= 0, "a tensor is read before it is written");
    for (int t : node.writes)
      require(std::exchange(p.writers[t], static_cast<int>(v)) < 0, "a tensor has two writers");
  }
  return p;
}

class Checker {
public:
  Checker(const Problem &p, std::istream &in) : p(p), in(in) {
    auto word = [&](const char *expected) {
      require(next<std::string>(in) == expected, std::string("no ") + expected);
    };
    word("recast-bound");
    require(next<int>(in) == 1, "another version of the format");
    word("budget"), budget = next<int64_t>(in);
    word("claim"), claim = next<std::string>(in);
    word("scale"), scale = next<int>(in);
    require(scale >= 0 && scale <= 60, "the scale is out of range");
    word("events"), events = nextList(in, nodes() + 1);
    word("inner"), isInner = next<int>(in) != 0;
    size = std::max(nodes(), tensors());
    // More than this proves the claim: costs are integers.
    threshold = claim == "unreachable" ? 0 : (static_cast<Wide>(std::stoll(claim)) - 1) << scale;
    for (int g = 0; g < gaps(); ++g) {
      for (int t = 0; t < tensors(); ++t)
        for (char kind : {'H', 'C', 'N'})
          addRow(kind, t, 0, g);
      for (int v = 0; v < nodes(); ++v)
        for (int t : p.nodes[v].reads)
          addRow('I', v, t, g);
      addRow('M', 0, 0, g);
    }
    Box box(static_cast<size_t>(3) * gaps() * size, 2);
    bool isOpen = propagate(box);
    word("again");
    for (int count = next<int>(in); count > 0; --count) {
      int v = next<int>(in);
      addRow('A', v, 0, next<int>(in));
    }
    word("cuts");
    for (int count = next<int>(in), i = 0; i < count; ++i)
      rows[{'K', i, 0, 0}] = nextCut(box);
    checkCase(box, isOpen);
  }

  std::string claim;
  int64_t budget = 0;

private:
  int nodes() const { return static_cast<int>(p.nodes.size()); }
  int tensors() const { return static_cast<int>(p.bytes.size()); }
  int gaps() const { return static_cast<int>(events.size()); }
  int column(int kind, int index, int g) const { return (g * 3 + kind) * size + index; }

  /// v runs again in gap g.
  int again(int v, int g) const {
    return g > 0 && v <= events[g - 1] && p.nodes[v].canRepeat ? column(0, v, g) : kZero;
  }
  /// t is held after event g.
  int held(int t, int g) const {
    if (g < 0 || p.writers[t] < 0 || p.writers[t] > events[g])
      return kZero;
    if (events[g] < nodes()) {
      auto &node = p.nodes[events[g]];
      if (has(node.writes, t) || (has(node.reads, t) && !has(node.overwrites, t)))
        return kOne;
    }
    return column(1, t, g);
  }
  /// t is held all through gap g.
  int carried(int t, int g) const { return isInner ? column(2, t, g) : held(t, g - 1); }

  static void add(Row &row, int column, Wide factor) {
    if (column == kOne)
      row.rhs -= factor;
    else if (column != kZero)
      row.terms.push_back({column, factor});
  }

  Wide used(int v) const {
    Wide sum = p.nodes[v].workspace;
    for (int t : p.nodes[v].writes)
      sum += p.bytes[t];
    for (int t : p.nodes[v].reads)
      sum += has(p.nodes[v].overwrites, t) ? 0 : p.bytes[t];
    return sum;
  }

  /// Adds the row of that name; a name that means nothing here has none.
  void addRow(char kind, int index, int other, int g) {
    require(g >= 0 && g < gaps() && index >= 0 && index < (kind == 'A' ? nodes() : size), "a row is out of range");
    int event = events[g], before = g > 0 ? events[g - 1] : -1;
    bool isTensor = kind == 'H' || kind == 'C' || kind == 'N';
    if (kind != 'M' && (isTensor ? p.writers[index] < 0 || p.writers[index] > before : index > before))
      return;
    Row row;
    if (kind == 'H') { // held <= carried + again
      if (held(index, g) < 0)
        return;
      add(row, carried(index, g), 1);
      add(row, again(p.writers[index], g), 1);
      add(row, held(index, g), -1);
    } else if (kind == 'C') { // carried <= held before
      if (!isInner)
        return;
      add(row, held(index, g - 1), 1);
      add(row, carried(index, g), -1);
    } else if (kind == 'N') { // A first run of the gap reads it.
      bool isRead = event == nodes() && p.isKept[index];
      for (int v = before + 1; v <= event && v < nodes(); ++v)
        isRead |= has(p.nodes[v].reads, index);
      if (!isRead)
        return;
      row.rhs = 1;
      add(row, held(index, g - 1), 1);
      add(row, again(p.writers[index], g), 1);
    } else if (kind == 'I') { // again <= held before + again of the input
      if (again(index, g) < 0)
        return;
      add(row, held(other, g - 1), 1);
      add(row, again(p.writers[other], g), 1);
      add(row, again(index, g), -1);
    } else if (kind == 'M') {
      row.rhs = (event < nodes() ? used(event) : 0) - budget;
      for (int t = 0; t < tensors(); ++t)
        if (event == nodes() && p.isKept[t])
          row.rhs += p.bytes[t];
        else if (held(t, g) >= 0)
          add(row, held(t, g), -p.bytes[t]);
    } else { // 'A'
      require(isInner && again(index, g) >= 0, "a row 'again' of a node that does not run again");
      row.rhs = -budget;
      add(row, again(index, g), -used(index));
      for (int t = 0; t < tensors(); ++t)
        if (p.writers[t] >= 0 && p.writers[t] <= before && !has(p.nodes[index].reads, t) &&
            !has(p.nodes[index].writes, t))
          add(row, carried(t, g), -p.bytes[t]);
    }
    rows[{kind, index, other, g}] = std::move(row);
  }

  int nextColumn() {
    std::string kind = next<std::string>(in);
    int index = next<int>(in), g = next<int>(in);
    require((kind == "r" || kind == "h" || kind == "w") && index >= 0 && index < size && g >= 0 && g < gaps(),
            "a column is out of range");
    return column(kind == "r" ? 0 : kind == "h" ? 1 : 2, index, g);
  }

  /// A cut must follow from one row: no choice of columns that fits the row takes the cut's sum over its limit.
  Row nextCut(const Box &box) {
    char kind = next<char>(in);
    int index = next<int>(in), g = next<int>(in), limit = next<int>(in);
    auto source = rows.find({kind, index, 0, g});
    require((kind == 'M' || kind == 'A') && source != rows.end() && limit >= 0, "a cut of no row");
    std::map<int, int> factors;
    for (int count = next<int>(in); count > 0; --count) {
      int item = nextColumn(), factor = next<int>(in);
      require(factor > 0, "a cut's factor is not positive");
      factors[item] = factor;
    }
    Wide capacity = -source->second.rhs;
    std::vector<Wide> lightest(limit + 2, static_cast<Wide>(1) << 120);
    lightest[0] = 0;
    Row cut{-limit, {}};
    for (auto [item, factor] : source->second.terms) {
      auto found = factors.find(item);
      int gain = found == factors.end() ? 0 : std::min(found->second, limit + 1);
      if (found != factors.end())
        cut.terms.push_back({item, -found->second});
      // A column that is known to be 1 only takes capacity, unless the cut counts it.
      if (gain == 0) {
        capacity += box[item] == 1 ? factor : 0;
        continue;
      }
      for (int value = limit + 1; box[item] != 0 && value > 0; --value)
        lightest[value] = std::min(lightest[value], lightest[std::max(0, value - gain)] - factor);
    }
    require(cut.terms.size() == factors.size(), "a cut counts columns that its row does not have");
    require(lightest[limit + 1] > capacity, "a cut does not follow from its row");
    return cut;
  }

  bool propagate(Box &box) const {
    for (bool isChanged = true; isChanged;) {
      isChanged = false;
      for (auto &[name, row] : rows) {
        Wide most = 0;
        for (auto [item, factor] : row.terms)
          most += box[item] == 1 || (box[item] == 2 && factor > 0) ? factor : 0;
        if (most < row.rhs)
          return false;
        for (auto [item, factor] : row.terms)
          if (box[item] == 2 && most - (factor < 0 ? -factor : factor) < row.rhs) {
            box[item] = factor > 0;
            isChanged = true;
          }
      }
    }
    return true;
  }

  /// Reads a case and the cases below it. Where `isOpen` is unset there is nothing to prove any more.
  void checkCase(Box box, bool isOpen) {
    isOpen = isOpen && propagate(box);
    std::string word = next<std::string>(in);
    for (; word == "proof"; word = next<std::string>(in)) {
      Wide value = 0;
      std::vector<Wide> costs(box.size());
      if (claim != "unreachable")
        for (int g = 1; g < gaps(); ++g)
          for (int v = 0; v < nodes(); ++v)
            costs[column(0, v, g)] = static_cast<Wide>(p.nodes[v].cost) << scale;
      for (int count = next<int>(in); count > 0; --count) {
        char kind = next<char>(in);
        int index = next<int>(in), other = next<int>(in), g = next<int>(in);
        auto row = rows.find({kind, index, other, g});
        Wide multiplier = next<int64_t>(in);
        require(row != rows.end() && multiplier >= 0, "a proof uses a row that does not exist");
        value += multiplier * row->second.rhs;
        for (auto [item, factor] : row->second.terms)
          costs[item] -= multiplier * factor;
      }
      for (size_t j = 0; j < box.size(); ++j)
        value += box[j] == 1 || (box[j] == 2 && costs[j] < 0) ? costs[j] : 0;
      isOpen = isOpen && value <= threshold;
      for (size_t j = 0; j < box.size(); ++j)
        if (box[j] == 2 && value + (costs[j] < 0 ? -costs[j] : costs[j]) > threshold)
          box[j] = costs[j] < 0;
      isOpen = isOpen && propagate(box);
    }
    if (word == "branch") {
      int item = nextColumn();
      char known = box[item];
      for (char value : {0, 1}) {
        box[item] = value;
        checkCase(box, isOpen && (known == 2 || known == value));
      }
      return;
    }
    require(word == "end", "neither proof, branch nor end");
    require(!isOpen, "a case is not proven");
  }

  const Problem &p;
  std::istream &in;
  int scale = 0, size = 0;
  Wide threshold = 0;
  std::vector<int> events;
  bool isInner = false;
  std::map<std::tuple<char, int, int, int>, Row> rows;
};

} // namespace

int main(int argc, char **argv) {
  if (argc != 3) {
    std::cerr << "usage: recast-check-bound PROBLEM CERTIFICATE\n"
                 "Says whether the certificate proves its claim about the problem.\n"
                 "Example: recast-bound rl100.txt 80 --problem rl100.problem --certificate rl100.proof && "
                 "recast-check-bound rl100.problem rl100.proof\n";
    return 2;
  }
  const char *file = argv[1];
  try {
    std::ifstream problemFile(argv[1]), proofFile(argv[2]);
    Problem problem = readProblem(problemFile);
    file = argv[2];
    Checker checker(problem, proofFile);
    std::cout << "proven: " << (checker.claim == "unreachable" ? "no schedule is" : "every schedule's extra cost is ")
              << (checker.claim == "unreachable" ? "" : "at least " + checker.claim) << " within " << checker.budget
              << " bytes\n";
    return 0;
  } catch (const std::exception &error) {
    std::cerr << file << ": not proven: " << error.what() << "\n";
    return 1;
  }
}
