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
#include "training/file_io.h"
#include "training/shard_file.h"

namespace dt::ps {
namespace {

using training::Extent;
using training::FileDescriptor;
using training::FileTable;
using training::Param;

constexpr int64_t kPieceBytes = 4 << 20;

/// An array of a table as the file has it.
struct Array {
  std::string name;
  Dtype dtype;
  void* memory;
  int64_t count;
};

/// In the order of copying: a row that is first used meanwhile has its values later than the bit
/// that says so, and so the file never has the bit without the values.
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

/// A file of another number of servers in the directory; empty: there is none.
std::string other_file(const std::string& directory, int32_t servers) {
  DIR* const handle = opendir(directory.c_str());
  if (handle == nullptr) return {};
  std::string found;
  while (const dirent* entry = readdir(handle)) {
    int32_t server = 0;
    int32_t of = 0;
    const std::string name = entry->d_name;
    if (sscanf(entry->d_name, "server-%d-of-%d.safetensors", &server, &of) == 2 && of != servers &&
        name == file_name(server, of)) {
      found = name;
    }
  }
  closedir(handle);
  return found;
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
  const Extent extent{static_cast<char*>(array.memory), data_begin + found->second.begin,
                      found->second.end - found->second.begin};
  if (const int error = training::read_all(fd, extent)) {
    return training::failed_io("read", path, error);
  }
  return {};
}

}  // namespace

std::string checkpoint_path(const std::string& directory, int32_t server, int32_t servers) {
  return directory + "/" + file_name(server, servers);
}

Result<std::vector<std::unique_ptr<Table>>> load(const std::string& directory, int32_t server,
                                                 int32_t servers) {
  constexpr char kPrefix[] = "variable.";
  std::vector<std::unique_ptr<Table>> tables;
  const std::string path = checkpoint_path(directory, server, servers);
  if (access(path.c_str(), F_OK) != 0) {
    const std::string other = other_file(directory, servers);
    if (other.empty()) return tables;
    return Status(Code::kConfig,
                  format("%s has %s, but this job has %d parameter servers; start as many as wrote "
                         "it, or give another directory",
                         training::quoted_path(directory).c_str(), other.c_str(), servers));
  }
  FileDescriptor file;
  int64_t data_begin = 0;
  int64_t digest = 0;
  DT_TRY_VALUE(const FileTable table,
               training::read_table(path, "dt_ps_serve", &file, &data_begin, &digest));
  for (const auto& [name, entry] : table.tensors) {
    if (name.rfind(kPrefix, 0) != 0 || entry.dtype != Dtype::kU8) continue;
    std::string bytes(static_cast<size_t>(entry.count), '\0');
    DT_TRY(read_array(file.get(), path, table, data_begin,
                      {name, Dtype::kU8, bytes.data(), entry.count}));
    ByteReader in(bytes);
    const Variable variable = get_variable(in);
    if (!in.complete() || !check(variable).ok() || kPrefix + variable.name != name) {
      return Status(Code::kInvalidArgument,
                    format("cannot load %s: its tensor \"%s\" is damaged",
                           training::quoted_path(path).c_str(), name.c_str()));
    }
    DT_TRY_VALUE(auto made, Table::create(variable, server, servers));
    for (const Array& array : arrays_of(*made)) {
      DT_TRY(read_array(file.get(), path, table, data_begin, array));
    }
    tables.push_back(std::move(made));
  }
  return tables;
}

/// Of the thread that writes, but for the construction.
struct Saving::File {
  std::string path;
  std::string partial;
  int64_t bytes = 0;
  FileDescriptor descriptor;

  ~File() {
    if (descriptor.get() >= 0) unlink(partial.c_str());  // it was given up
  }

  Status open() {
    if (unlink(partial.c_str()) != 0 && errno != ENOENT) {
      return training::failed_io("remove what an earlier save left at", partial, errno);
    }
    descriptor.reset(training::open_file(partial, O_WRONLY | O_CREAT | O_EXCL));
    if (descriptor.get() < 0) return training::failed_io("make", partial, errno);
    int error = training::check_file_limit(bytes);
    if (error == 0) error = training::reserve_file(descriptor.get(), bytes);
    if (error == 0) return {};
    return training::failed_io(format("get %lld bytes for", static_cast<long long>(bytes)), partial,
                               error);
  }

  Status write(std::string piece, int64_t at) {
    if (descriptor.get() < 0) DT_TRY(open());
    const int error = training::write_all(descriptor.get(),
                                          {piece.data(), at, static_cast<int64_t>(piece.size())});
    return error == 0 ? Status() : training::failed_io("write", partial, error);
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
                                      std::function<void(const Status&)> done) {
  std::shared_ptr<Saving> self(new Saving(owner, files, std::move(done)));
  const Status planned = self->plan(std::move(path), tables);
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

Status Saving::plan(std::string path, const std::vector<Table*>& tables) {
  std::vector<Param> params;
  std::vector<Array> arrays;
  made_.reserve(tables.size() + 1);  // its strings stay where they are
  for (Table* const table : tables) {
    ByteWriter out;
    put(out, table->variable());
    made_.push_back(out.take());
    for (Array& array : arrays_of(*table)) arrays.push_back(std::move(array));
    arrays.push_back({"variable." + table->variable().name, Dtype::kU8, made_.back().data(),
                      static_cast<int64_t>(made_.back().size())});
  }
  for (const Array& array : arrays) {
    Param& param = params.emplace_back();
    param.name = array.name;
    param.dtype = array.dtype;
    param.count = array.count;
  }
  DT_TRY_VALUE(training::FilePlan plan, training::plan_file(params, nullptr));
  made_.push_back(std::move(plan.head));
  parts_.push_back({made_.back().data(), 0, static_cast<int64_t>(made_.back().size())});
  for (const training::FileTensor& tensor : plan.tensors) {
    const Array& array = arrays[static_cast<size_t>(tensor.param)];
    parts_.push_back({static_cast<const char*>(array.memory), tensor.begin,
                      array.count * dtype_bytes(array.dtype)});
  }
  file_ = std::make_shared<File>();
  file_->partial = path + ".partial";
  file_->path = std::move(path);
  file_->bytes = plan.bytes;
  return {};
}

void Saving::go_on() {
  while (next_ < parts_.size() && copied_ == parts_[next_].bytes) {
    ++next_;
    copied_ = 0;
  }
  const bool last = next_ == parts_.size();
  std::string piece;
  int64_t at = 0;
  if (!last) {
    const Part& part = parts_[next_];
    const int64_t bytes = std::min(kPieceBytes, part.bytes - copied_);
    piece.assign(part.memory + copied_, static_cast<size_t>(bytes));
    at = part.at + copied_;
    copied_ += bytes;
  }
  files_->post([weak = weak_from_this(), owner = owner_->poster(), file = file_, last,
                piece = std::move(piece), at]() mutable {
    const Status status = last ? file->finish() : file->write(std::move(piece), at);
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
