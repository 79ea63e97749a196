#include "tools/common/FactsPage.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/FormatVariadic.h"

namespace recast::tools {

namespace {

using llvm::json::Array;
using llvm::json::Object;
using llvm::json::Value;

/// Longer lists are folded.
constexpr size_t kOpen = 40;

bool isScalar(const Value &value) { return !value.getAsObject() && !value.getAsArray(); }

/// Names come first: they say what the rest is about.
std::vector<llvm::StringRef> keysOf(llvm::ArrayRef<const Object *> rows) {
  constexpr llvm::StringLiteral kFirst[] = {"pass", "name", "node", "what", "before", "after"};
  llvm::StringSet<> known;
  std::vector<llvm::StringRef> keys;
  for (const Object *row : rows)
    for (const auto &[key, value] : *row)
      if (known.insert(key).second)
        keys.push_back(key);
  auto place = [&](llvm::StringRef key) { return llvm::find(kFirst, key) - std::begin(kFirst); };
  llvm::sort(keys,
             [&](llvm::StringRef a, llvm::StringRef b) { return std::pair(place(a), a) < std::pair(place(b), b); });
  return keys;
}

/// "saved_bytes" as it is read.
std::string label(llvm::StringRef key) {
  std::string text = escapeHtml(key);
  llvm::replace(text, '_', ' ');
  return text;
}

class Page {
public:
  explicit Page(llvm::raw_ostream &out) : out(out) {}

  void write(const Value &value) {
    if (const Object *object = value.getAsObject())
      write(*object);
    else if (const Array *array = value.getAsArray())
      write(*array);
    else if (auto text = value.getAsString())
      out << escapeHtml(*text);
    else if (value.kind() != Value::Null)
      out << value;
  }

  void write(const Object &object) {
    out << "<table>";
    for (llvm::StringRef key : keysOf(&object)) {
      out << "<tr><th scope=\"row\">" << label(key) << "</th><td>";
      write(*object.get(key));
      out << "</td></tr>\n";
    }
    out << "</table>\n";
  }

private:
  void write(const Array &array) {
    if (array.empty()) {
      out << "none";
      return;
    }
    bool isLong = array.size() > kOpen;
    if (isLong)
      out << "<details><summary>" << array.size() << "</summary>";
    std::vector<const Object *> rows;
    for (const Value &value : array)
      if (const Object *row = value.getAsObject())
        rows.push_back(row);
    if (rows.size() == array.size()) {
      writeRows(rows);
    } else if (llvm::all_of(array, isScalar)) {
      for (size_t i = 0; i < array.size(); ++i) {
        out << (i ? ", " : "");
        write(array[i]);
      }
    } else {
      out << "<ul>";
      for (const Value &value : array) {
        out << "<li>";
        write(value);
        out << "</li>\n";
      }
      out << "</ul>\n";
    }
    if (isLong)
      out << "</details>\n";
  }

  void writeRows(llvm::ArrayRef<const Object *> rows) {
    std::vector<llvm::StringRef> keys = keysOf(rows);
    out << "<table><tr>";
    for (llvm::StringRef key : keys)
      out << "<th scope=\"col\">" << label(key) << "</th>";
    out << "</tr>\n";
    for (const Object *row : rows) {
      out << "<tr>";
      for (llvm::StringRef key : keys) {
        out << "<td>";
        if (const Value *cell = row->get(key))
          write(*cell);
        out << "</td>";
      }
      out << "</tr>\n";
    }
    out << "</table>\n";
  }

  llvm::raw_ostream &out;
};

} // namespace

std::string escapeHtml(llvm::StringRef text) {
  std::string safe;
  for (char c : text)
    switch (c) {
    case '<':
      safe += "&lt;";
      break;
    case '>':
      safe += "&gt;";
      break;
    case '&':
      safe += "&amp;";
      break;
    case '"':
      safe += "&quot;";
      break;
    default:
      safe += c;
    }
  return safe;
}

std::string factsPage(const Object &facts, llvm::StringRef title) {
  std::string page;
  llvm::raw_string_ostream out(page);
  out << "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>" << escapeHtml(title)
      << "</title>\n<style>body{font:14px system-ui,sans-serif;margin:2em}table{border-collapse:collapse;margin:4px 0}"
         "td,th{padding:2px 10px;text-align:left;vertical-align:top;border:1px solid #0002;font-weight:normal}"
         "th{background:#0001}summary{cursor:pointer}</style></head><body>\n<h1>"
      << escapeHtml(title) << "</h1>\n";
  const Array *passes = facts.size() == 1 ? facts.getArray("passes") : nullptr;
  Page body(out);
  if (!passes)
    body.write(facts);
  else if (passes->empty())
    out << "<p>No pass had anything to decide.</p>\n";
  else // A report: a heading a pass.
    for (const Value &value : *passes) {
      Object pass = *value.getAsObject();
      out << "<h2>" << escapeHtml(pass.getString("pass").value_or("")) << "</h2>\n";
      pass.erase("pass");
      body.write(pass);
    }
  out << "</body></html>\n";
  return page;
}

} // namespace recast::tools
