#include "runtime/device/Overlap.h"
#include "runtime/device/Dependencies.h"
#include <numeric>

namespace recast::device {
namespace {

class Mover {
public:
  Mover(const std::vector<Work> &work, std::span<const MemoryUse> results)
      : places(work.size()), readers(work.size()), isResult(work.size()) {
    Dependencies dependencies;
    for (size_t i = 0; i < work.size(); ++i) {
      for (const MemoryUse &use : work[i].uses)
        for (size_t writer : dependencies.writersOf(use))
          if (writer != i)
            readers[writer].add(i);
      needs.push_back(dependencies.add(i, work[i].uses));
    }
    for (const MemoryUse &result : results) {
      writers.push_back(dependencies.writersOf(result));
      for (size_t writer : writers.back())
        isResult[writer] = true;
    }
    findPlaces();
  }

  /// Pieces in their new order.
  std::vector<size_t> order() const {
    std::vector<size_t> pieces(places.size());
    std::iota(pieces.begin(), pieces.end(), 0);
    std::ranges::sort(pieces, {}, [&](size_t piece) { return std::pair(places[piece], piece); });
    return pieces;
  }

  std::vector<Dependencies::Pieces> writers; ///< Of each result.

private:
  /// The only piece that reads what another has written.
  struct Reader {
    size_t count = 0, piece = 0;
    void add(size_t reader) {
      count += count == 0 || piece != reader;
      piece = reader;
    }
  };

  /// A place is the number of the piece that another comes right after; its own number where it stays. What stays has
  /// more than one reader: the gradient of an activation, say, leads to those of a weight and of the layer below. So
  /// the order of the backward itself remains.
  void findPlaces() {
    std::vector<bool> isMoved(places.size());
    for (size_t i = places.size(); i-- > 0;)
      isMoved[i] = readers[i].count == 0 ? isResult[i] : readers[i].count == 1 && isMoved[readers[i].piece];
    for (size_t i = 0; i < places.size(); ++i) {
      places[i] = isMoved[i] ? 0 : i;
      for (size_t need : needs[i])
        if (isMoved[i])
          places[i] = std::max(places[i], places[need]);
    }
  }

  std::vector<Dependencies::Pieces> needs;
  std::vector<size_t> places;
  std::vector<Reader> readers;
  std::vector<bool> isResult;
};

} // namespace

std::vector<size_t> finishEarly(std::vector<Work> &work, std::span<const MemoryUse> results) {
  Mover mover(work, results);
  std::vector<size_t> order = mover.order(), numbers(work.size());
  std::vector<Work> moved;
  for (size_t piece : order) {
    numbers[piece] = moved.size();
    moved.push_back(std::move(work[piece]));
  }
  work = std::move(moved);
  std::vector<size_t> known;
  for (const Dependencies::Pieces &writers : mover.writers) {
    size_t last = 0;
    for (size_t writer : writers)
      last = std::max(last, numbers[writer]);
    known.push_back(last + 1);
  }
  return known;
}

} // namespace recast::device
