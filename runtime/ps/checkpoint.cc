// SPDX-License-Identifier: Apache-2.0
#include "ps/checkpoint.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/byte_codec.h"
#include "net/security.h"
#include "training/file_io.h"
#include "training/shard_file.h"

namespace dt::ps {
namespace {

using training::Extent;
using training::FileDescriptor;
using training::FileTable;
using training::Param;

constexpr int64_t kPieceBytes = 4 << 20;
constexpr char kWorkers[] = "server.workers";
static_assert(sizeof(Known) == 16);

/// An array of a table as the file has it.
struct Array {
  std::string name;
  Dtype dtype;
  void* memory;
  int64_t count;
};

std::vector<Array> arrays_of(Table& table) {
  const std::string& name = table.variable().name;
  const int64_t elements = table.rows() * table.variable().columns;
  std::vector<Array> arrays = {
      {"updates." + name, Dtype::kU32, table.updates(), table.rows()},
      {name, Dtype::kF32, table.values(), elements},
  };
  if (table.variable().moments() > 0) {
    arrays.push_back({"optimizer.first." + name, Dtype::kF32, table.moment(0), elements});
  }
  if (table.variable().moments() > 1) {
    arrays.push_back({"optimizer.second." + name, Dtype::kF32, table.moment(1), elements});
  }
  return arrays;
}

std::string file_name(int32_t server, int32_t servers) {
  return format("server-%d-of-%d.safetensors", server, servers);
}

std::string partial_prefix(int32_t server, int32_t servers) {
  return file_name(server, servers) + ".partial.";
}

/// A file of another server in the directory, this one's being absent; empty: there is none.
/// Removes what saves of this one have left.
Result<std::string> look_around(const std::string& directory, int32_t server, int32_t servers) {
  DIR* const handle = opendir(directory.c_str());
  if (handle == nullptr && errno == ENOENT) return std::string();
  if (handle == nullptr) return training::failed_io("list", directory, errno);
  std::string found;
  for (;;) {
    errno = 0;
    const dirent* const entry = readdir(handle);
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    int32_t other = 0;
    int32_t of = 0;
    if (name.rfind(partial_prefix(server, servers), 0) == 0) {
      unlink((directory + "/" + name).c_str());
    } else if (sscanf(entry->d_name, "server-%d-of-%d.safetensors", &other, &of) == 2 &&
               name == file_name(other, of)) {
      found = name;
    }
  }
  const int error = errno;
  closedir(handle);
  if (error != 0) return training::failed_io("list", directory, error);
  return found;
}

/// Pages of zeros are left as they are: memory that nobody has written costs nothing.
void copy_unless_zero(const char* from, int64_t bytes, char* to) {
  constexpr int64_t kPage = 4096;
  static constexpr char kZeros[kPage] = {};
  // By pages of `to`: an array may begin within one.
  int64_t block = kPage - static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % kPage);
  for (int64_t at = 0; at < bytes; at += block, block = kPage) {
    const auto here = static_cast<size_t>(std::min(block, bytes - at));
    if (memcmp(from + at, kZeros, here) != 0) memcpy(to + at, from + at, here);
  }
}

Status read_array(int fd, const std::string& path, const FileTable& file, int64_t data_begin,
                  const Array& array) {
  const auto found = file.tensors.find(array.name);
  if (found == file.tensors.end() || found->second.dtype != array.dtype ||
      found->second.count != array.count) {
    return Status(Code::kInvalidArgument,
                  format("cannot load %s: its tensor \"%s\" is missing or of another size; give a "
                         "file that a parameter server wrote",
                         training::quoted_path(path).c_str(), array.name.c_str()));
  }
  const int64_t bytes = found->second.end - found->second.begin;
  std::string piece(static_cast<size_t>(std::min(bytes, kPieceBytes)), '\0');
  for (int64_t at = 0; at < bytes; at += kPieceBytes) {
    const int64_t here = std::min(kPieceBytes, bytes - at);
    const Extent extent{piece.data(), data_begin + found->second.begin + at, here};
    if (const int error = training::read_all(fd, extent)) {
      return training::failed_io("read", path, error);
    }
    copy_unless_zero(piece.data(), here, static_cast<char*>(array.memory) + at);
  }
  return {};
}

}  // namespace

std::string checkpoint_path(const std::string& directory, int32_t server, int32_t servers) {
  return directory + "/" + file_name(server, servers);
}

Result<Loaded> load(const std::string& directory, int32_t server, int32_t servers) {
  constexpr char kPrefix[] = "variable.";
  Loaded loaded;
  const std::string path = checkpoint_path(directory, server, servers);
  DT_TRY_VALUE(const std::string other, look_around(directory, server, servers));
  if (access(path.c_str(), F_OK) != 0) {
    // Values that cannot be read now are not lost: a server that began anew would overwrite them.
    if (errno != ENOENT) return training::failed_io("look for", path, errno);
    if (other.empty()) return loaded;
    return Status(
        Code::kConfig,
        format("%s has %s, but not %s; start as many parameter servers as wrote it, bring "
               "what is missing, or give an empty directory",
               training::quoted_path(directory).c_str(), other.c_str(),
               file_name(server, servers).c_str()));
  }
  FileDescriptor file;
  int64_t data_begin = 0;
  int64_t digest = 0;
  DT_TRY_VALUE(const FileTable table,
               training::read_table(path, "dt_ps_serve", &file, &data_begin, &digest));
  const auto read = [&](const Array& array) {
    return read_array(file.get(), path, table, data_begin, array);
  };
  for (const auto& [name, entry] : table.tensors) {
    if (name.rfind(kPrefix, 0) != 0 || entry.dtype != Dtype::kU8) continue;
    std::string bytes(static_cast<size_t>(entry.count), '\0');
    DT_TRY(read({name, Dtype::kU8, bytes.data(), entry.count}));
    ByteReader in(bytes);
    const Variable variable = get_variable(in);
    if (!in.complete() || !check(variable).ok() || kPrefix + variable.name != name) {
      return Status(Code::kInvalidArgument,
                    format("cannot load %s: its tensor \"%s\" is damaged",
                           training::quoted_path(path).c_str(), name.c_str()));
    }
    DT_TRY_VALUE(auto made, Table::create(variable, server, servers));
    for (const Array& array : arrays_of(*made)) DT_TRY(read(array));
    loaded.tables.push_back(std::move(made));
  }
  const auto workers = table.tensors.find(kWorkers);
  if (workers == table.tensors.end()) return loaded;
  loaded.workers.resize(static_cast<size_t>(workers->second.count / 2));
  DT_TRY(read({kWorkers, Dtype::kU64, loaded.workers.data(),
               static_cast<int64_t>(2 * loaded.workers.size())}));
  return loaded;
}

/// Of the thread that writes, but for the construction.
struct Saving::File {
  std::string path;
  std::string partial;
  int64_t bytes = 0;
  FileDescriptor descriptor;

  ~File() { give_up(); }

  /// Leaves nothing behind, unless it is finished.
  void give_up() {
    if (descriptor.get() >= 0) unlink(partial.c_str());
    descriptor.reset(-1);
  }

  Status open() {
    descriptor.reset(training::open_file(partial, O_WRONLY | O_CREAT | O_TRUNC));
    if (descriptor.get() < 0) return training::failed_io("make", partial, errno);
    int error = training::check_file_limit(bytes);
    if (error == 0) error = training::reserve_file(descriptor.get(), bytes);
    if (error == 0) return {};
    return training::failed_io(format("get %lld bytes for", static_cast<long long>(bytes)), partial,
                               error);
  }

  Status write(std::vector<Piece> pieces) {
    if (descriptor.get() < 0) DT_TRY(open());
    for (Piece& piece : pieces) {
      const int error = training::write_all(
          descriptor.get(),
          {piece.bytes.data(), piece.at, static_cast<int64_t>(piece.bytes.size())});
      if (error != 0) return training::failed_io("write", partial, error);
    }
    return {};
  }

  Status finish() {
    if (const int error = training::sync_file(descriptor.get())) {
      return training::failed_io("write", partial, error);
    }
    if (rename(partial.c_str(), path.c_str()) != 0) {
      return training::failed_io(format("rename %s to", training::quoted_path(partial).c_str()),
                                 path, errno);
    }
    descriptor.reset(-1);
    return training::sync_directory_of(path);
  }
};

std::shared_ptr<Saving> Saving::begin(net::Loop* owner, net::Loop* files, std::string path,
                                      const std::vector<Table*>& tables,
                                      const std::vector<Known>& workers,
                                      std::function<void(const Status&)> done) {
  std::shared_ptr<Saving> self(new Saving(owner, files, std::move(done)));
  const Status planned = self->plan(std::move(path), tables, workers);
  if (planned.ok()) {
    self->go_on();
  } else {
    owner->post([weak = std::weak_ptr(self), planned] {
      if (const auto saving = weak.lock()) saving->end(planned);
    });
  }
  return self;
}

Saving::~Saving() {
  files_->post([file = std::move(file_)]() mutable { file = nullptr; });
}

Status Saving::plan(std::string path, const std::vector<Table*>& tables,
                    const std::vector<Known>& workers) {
  std::vector<Param> params;
  std::vector<std::pair<size_t, Column>> columns;  // and which of parts_ each belongs to
  const auto add = [&](size_t part, const Array& array) {
    Param& param = params.emplace_back();
    param.name = array.name;
    param.dtype = array.dtype;
    param.count = array.count;
    const int64_t bytes = array.count * dtype_bytes(array.dtype);
    const int64_t rows = std::max<int64_t>(parts_[part].rows, 1);
    columns.push_back({part, {static_cast<const char*>(array.memory), bytes / rows, 0}});
  };
  made_.reserve(tables.size() + 2);  // its strings stay where they are
  for (Table* const table : tables) {
    parts_.push_back({table->rows(), {}});
    for (const Array& array : arrays_of(*table)) add(parts_.size() - 1, array);
    ByteWriter out;
    put(out, table->variable());
    made_.push_back(out.take());
    parts_.push_back({1, {}});
    add(parts_.size() - 1, {"variable." + table->variable().name, Dtype::kU8, made_.back().data(),
                            static_cast<int64_t>(made_.back().size())});
  }
  made_.emplace_back(reinterpret_cast<const char*>(workers.data()), workers.size() * sizeof(Known));
  parts_.push_back({1, {}});
  add(parts_.size() - 1,
      {kWorkers, Dtype::kU64, made_.back().data(), static_cast<int64_t>(2 * workers.size())});
  DT_TRY_VALUE(training::FilePlan plan, training::plan_file(params, nullptr));
  for (const training::FileTensor& tensor : plan.tensors) {
    auto& [part, column] = columns[static_cast<size_t>(tensor.param)];
    column.at = tensor.begin;
    parts_[part].columns.push_back(column);
  }
  made_.push_back(std::move(plan.head));
  parts_.push_back({1, {{made_.back().data(), static_cast<int64_t>(made_.back().size()), 0}}});
  file_ = std::make_shared<File>();
  // Of its own: the server that this one takes the place of may still be writing.
  uint64_t own = 0;
  DT_TRY(net::random_bytes(&own, sizeof own));
  file_->partial = path + format(".partial.%016llx", static_cast<unsigned long long>(own));
  file_->path = std::move(path);
  file_->bytes = plan.bytes;
  return {};
}

std::vector<Saving::Piece> Saving::copy() {
  while (next_ < parts_.size() && copied_ == parts_[next_].rows) {
    ++next_;
    copied_ = 0;
  }
  std::vector<Piece> pieces;
  if (next_ == parts_.size()) return pieces;
  const Part& part = parts_[next_];
  int64_t row_bytes = 0;
  for (const Column& column : part.columns) row_bytes += column.row_bytes;
  const int64_t most = std::max<int64_t>(kPieceBytes / std::max<int64_t>(row_bytes, 1), 1);
  const int64_t rows = std::min(most, part.rows - copied_);
  for (const Column& column : part.columns) {
    const int64_t skipped = copied_ * column.row_bytes;
    pieces.push_back(
        {std::string(column.memory + skipped, static_cast<size_t>(rows * column.row_bytes)),
         column.at + skipped});
  }
  copied_ += rows;
  return pieces;
}

void Saving::go_on() {
  std::vector<Piece> pieces = copy();
  const bool last = pieces.empty();
  files_->post([weak = weak_from_this(), owner = owner_->poster(), file = file_, last,
                pieces = std::move(pieces)]() mutable {
    const Status status = last ? file->finish() : file->write(std::move(pieces));
    if (!status.ok()) file->give_up();
    owner([weak = std::move(weak), status, last] {
      const auto self = weak.lock();
      if (self == nullptr) return;
      if (last || !status.ok()) return self->end(status);
      self->go_on();
    });
  });
}

void Saving::end(const Status& status) {
  const auto done = std::move(done_);
  done(status);
}

}  // namespace dt::ps
