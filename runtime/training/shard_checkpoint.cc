// SPDX-License-Identifier: Apache-2.0
// Reads and writes the file of a sharded model, every rank its own pieces. Between two steps of
// that the ranks agree: the next one begins only if the last one succeeded everywhere.
#include "training/shard_checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <tuple>

#include "base/xxh64.h"
#include "training/device_pipe.h"
#include "training/file_call.h"
#include "training/file_io.h"
#include "training/shard_file.h"

namespace dt::training {
namespace {

constexpr int64_t kSampleBytes = 4096;  // at both ends of a tensor, to compare ranks' files by

/// What this rank has of all parameters. On a GPU `stream` waits until it is there.
Result<std::vector<Shard::Piece>> all_pieces(Shard& shard, cuda::Stream stream) {
  std::vector<Shard::Piece> pieces;
  for (int32_t i = 0; i < static_cast<int32_t>(shard.params().size()); ++i) {
    DT_TRY_VALUE(const Shard::Piece piece, shard.piece(i, stream));
    pieces.push_back(piece);
  }
  return pieces;
}

/// Null: the shard is in host memory. Its stream is behind what was written of pieces.
Result<std::unique_ptr<DevicePipe>> pipe_of(const Shard& shard) {
  const auto device = shard.device();
  if (device == nullptr) return std::unique_ptr<DevicePipe>();
  DT_TRY_VALUE(auto pipe, DevicePipe::create(shard.comm()));
  DT_TRY(shard.wait_for_written(pipe->stream()));
  return pipe;
}

cuda::Stream stream_of(const std::unique_ptr<DevicePipe>& pipe) {
  return pipe != nullptr ? pipe->stream() : nullptr;
}

struct Extents {
  std::vector<Extent> on_host;
  std::vector<Extent> on_device;
};

/// transfer(extent) of memory and file, or of blocks that pass to or from a GPU. `up`: it writes to
/// memory, and else reads it.
template <class Transfer>
Status transfer_all(DevicePipe* pipe, const Extents& extents, bool up, Transfer transfer) {
  if (pipe != nullptr) DT_TRY(pipe->await());  // first what its stream has
  for (const Extent& extent : extents.on_host) DT_TRY(transfer(extent));
  if (pipe == nullptr) return {};
  std::vector<DevicePipe::Part> parts;
  std::vector<int64_t> places;  // of each in the file
  for (const Extent& extent : extents.on_device) {
    for (int64_t begin = 0; begin < extent.bytes; begin += DevicePipe::kPartBytes) {
      const int64_t bytes = std::min(extent.bytes - begin, DevicePipe::kPartBytes);
      parts.push_back({extent.memory + begin, nullptr, bytes, !up, up});
      places.push_back(extent.at + begin);
    }
  }
  DT_TRY(pipe->run(parts, pipe->stream(), [&](size_t part, char* data, char*) {
    return transfer(Extent{data, places[part], parts[part].bytes});
  }));
  return pipe->await();
}

FileOptimizer names_of(const Optimizer& optimizer) {
  if (const auto* sgd = std::get_if<Sgd>(&optimizer.options().kind)) {
    return {"sgd", sgd->momentum != 0 ? "momentum_buffer" : nullptr, nullptr};
  }
  return {"adamw", "exp_avg", "exp_avg_sq"};
}

/// This rank's 1/N of a parameter that all ranks have: from, to.
std::pair<int64_t, int64_t> share_of(int64_t count, const comm::Communicator& comm) {
  const int64_t ranks = comm.size();
  const auto begin = [&](int64_t rank) {
    return count / ranks * rank + std::min(rank, count % ranks);
  };
  return {begin(comm.rank()), begin(comm.rank() + 1)};
}

/// Where the elements of this rank's pieces are, in memory and in the file, in its order.
/// `shared`: of parameters that every rank has all of, this rank's share.
Result<Extents> extents_of(Shard& shard, Optimizer* optimizer,
                           const std::vector<FileTensor>& tensors,
                           const std::vector<Shard::Piece>& pieces, bool shared,
                           cuda::Stream stream) {
  using Role = FileTensor::Role;
  Extents extents;
  for (const FileTensor& tensor : tensors) {
    if (tensor.role == Role::kStep) continue;
    const Shard::Piece& piece = pieces[static_cast<size_t>(tensor.param)];
    auto* memory = static_cast<char*>(piece.param);
    if (tensor.role != Role::kParam) {
      DT_TRY_VALUE(const Optimizer::Held held, optimizer->held(tensor.param, piece, stream));
      memory = tensor.role == Role::kFirst    ? held.first
               : tensor.role == Role::kSecond ? held.second
                                              : held.master;
    }
    int64_t from = piece.offset;
    int64_t to = piece.offset + piece.count;
    if (shared) std::tie(from, to) = share_of(tensor.count, *shard.comm());
    if (from == to) continue;
    const int64_t element = dtype_bytes(tensor.dtype);
    const bool on_host =
        shard.device() == nullptr ||
        (tensor.role == Role::kParam ? shard.keeps_pieces_on_host() : optimizer->keeps_on_host());
    auto& all = on_host ? extents.on_host : extents.on_device;
    all.push_back({memory + (from - piece.offset) * element, tensor.begin + from * element,
                   (to - from) * element});
  }
  return extents;
}

/// Where the numbers of steps, by parameter, are in memory and in the file.
std::vector<Extent> extents_of_steps(const std::vector<FileTensor>& tensors,
                                     std::vector<int64_t>* steps) {
  std::vector<Extent> extents;
  for (const FileTensor& tensor : tensors) {
    if (tensor.role != FileTensor::Role::kStep) continue;
    int64_t& number = (*steps)[static_cast<size_t>(tensor.param)];
    extents.push_back({reinterpret_cast<char*>(&number), tensor.begin, sizeof number});
  }
  return extents;
}

Status check_between_steps(Shard& shard, const char* function) {
  DT_TRY(shard.comm()->check_ungrouped(function));
  if (!shard.reducer()->in_step()) return {};
  return Status(Code::kInvalidState,
                format("%s on comm \"%s\": inside a step; call it after dt_reducer_finish",
                       function, shard.comm()->name().c_str()));
}

// ---- saving ----

class Saving {
 public:
  Saving(Shard& shard, Optimizer* optimizer, const std::string& path)
      : shard_(shard),
        optimizer_(optimizer),
        comm_(*shard.comm()),
        path_(path),
        partial_(path + ".partial"),
        call_(comm_, "shard_save") {}
  ~Saving() {
    if (made_) unlink(partial_.c_str());
  }
  Saving(const Saving&) = delete;
  Saving& operator=(const Saving&) = delete;

  Status run() {
    const Status planned = plan();
    const auto digest = static_cast<int64_t>(xxh64(plan_.head.data(), plan_.head.size()));
    DT_TRY(call_.agree_on(
        {planned}, digest,
        "save different tensors; give an optimizer of one kind on all ranks, or on none"));
    int64_t stamp = INT64_MAX;
    DT_TRY(call_.agree({comm_.rank() == 0 ? make(&stamp) : Status()}, &stamp));
    DT_TRY(call_.agree(comm_.rank() == 0 ? FileOutcome() : find(stamp)));
    DT_TRY(count_steps());
    DT_TRY(call_.agree({write()}));
    return call_.agree({comm_.rank() == 0 ? finish() : Status()});
  }

 private:
  /// Waits for what is still sent of the parameters.
  Status plan() {
    FileOptimizer names;
    if (optimizer_ != nullptr) {
      names = names_of(*optimizer_);
      DT_TRY(optimizer_->settle());
    }
    DT_TRY_VALUE(plan_, plan_file(shard_.params(), optimizer_ != nullptr ? &names : nullptr));
    DT_TRY_VALUE(pipe_, pipe_of(shard_));
    DT_TRY_VALUE(pieces_, all_pieces(shard_, stream_of(pipe_)));
    return check_limit();
  }
  Status check_limit() const {
    const int error = check_file_limit(plan_.bytes);
    if (error == 0) return {};
    return failed_io(format("write the %lld bytes of", static_cast<long long>(plan_.bytes)), path_,
                     error);
  }
  Status make(int64_t* stamp);
  Status reserve();
  FileOutcome find(int64_t stamp);
  Status count_steps();
  Status write();
  Status finish();

  Shard& shard_;
  Optimizer* const optimizer_;
  comm::Communicator& comm_;
  const std::string path_;
  const std::string partial_;
  FileCall call_;
  std::unique_ptr<DevicePipe> pipe_;
  FilePlan plan_;
  std::vector<Shard::Piece> pieces_;
  std::vector<int64_t> steps_;  // by parameter
  FileDescriptor file_;
  bool made_ = false;  // and not renamed: by this rank, which removes it
};

/// A new file, not the old one emptied: processes of a job that was killed may still write to that.
/// `stamp` becomes the time that the others know it by.
Status Saving::make(int64_t* stamp) {
  DT_TRY(check_replaceable(path_));
  if (unlink(partial_.c_str()) != 0 && errno != ENOENT) {
    return failed_io("remove what an earlier save left at", partial_, errno);
  }
  file_.reset(open_file(partial_, O_WRONLY | O_CREAT | O_EXCL));
  if (file_.get() < 0) return failed_io("make", partial_, errno);
  made_ = true;
  DT_TRY(reserve());
  // A file of that name on another host has another time. Where times cannot be set, that of now
  // differs as well.
  const timespec random = {static_cast<time_t>(std::random_device()() >> 1), 0};
  const timespec times[] = {random, random};
  (void)futimens(file_.get(), times);
  if (const int error = sync_file(file_.get())) return failed_io("make", partial_, error);
  struct stat status = {};
  if (fstat(file_.get(), &status) != 0) return failed_io("make", partial_, errno);
  *stamp = status.st_mtim.tv_sec;
  return {};
}

/// A full disk shows here, before anything is written.
Status Saving::reserve() {
  const int error = reserve_file(file_.get(), plan_.bytes);
  if (error == 0) return {};
  return failed_io(format("get %lld bytes for", static_cast<long long>(plan_.bytes)), partial_,
                   error);
}

/// Opens it for writing alone: of what a process reads, NFS writes back whole pages, and a page may
/// have bytes of several ranks.
FileOutcome Saving::find(int64_t stamp) {
  file_.reset(open_file(partial_, O_WRONLY));
  struct stat status = {};
  if (file_.get() >= 0 && fstat(file_.get(), &status) == 0 && status.st_mtim.tv_sec == stamp &&
      status.st_size == plan_.bytes) {
    return {};
  }
  if (file_.get() < 0 && errno != ENOENT) return {failed_io("open", partial_, errno)};
  return {Status(Code::kSystem, quoted_path(partial_)), true};
}

/// Collective. Only the owners of a parameter count its steps.
Status Saving::count_steps() {
  if (optimizer_ == nullptr) return {};
  for (size_t i = 0; i < pieces_.size(); ++i) {
    steps_.push_back(optimizer_->steps(static_cast<int32_t>(i)));
  }
  return call_.reduce(steps_, ReduceOp::kMax);
}

Status Saving::write() {
  const auto write = [&](const Extent& extent) -> Status {
    const int error = write_all(file_.get(), extent);
    return error == 0 ? Status() : failed_io("write", partial_, error);
  };
  if (!shard_.reducer()->is_further_replica()) {
    DT_TRY_VALUE(const auto extents, extents_of(shard_, optimizer_, plan_.tensors, pieces_,
                                                shard_.stage() == 0, stream_of(pipe_)));
    DT_TRY(transfer_all(pipe_.get(), extents, /*up=*/false, write));
    DT_TRY(shard_.check_whole());  // a GPU goes on behind a gather that failed
  }
  if (comm_.rank() == 0) {
    DT_TRY(write({plan_.head.data(), 0, static_cast<int64_t>(plan_.head.size())}));
    for (const Extent& each : extents_of_steps(plan_.tensors, &steps_)) DT_TRY(write(each));
  }
  const int error = sync_file(file_.get());
  return error == 0 ? Status() : failed_io("write to the disk", partial_, error);
}

Status Saving::finish() {
  struct stat mine = {};
  struct stat there = {};
  if (fstat(file_.get(), &mine) != 0 || stat(partial_.c_str(), &there) != 0) {
    return failed_io("find", partial_, errno);
  }
  if (mine.st_dev != there.st_dev || mine.st_ino != there.st_ino) {
    made_ = false;  // it is not this job's
    return Status(Code::kInvalidState,
                  format("%s was replaced meanwhile; let one job alone save to %s",
                         quoted_path(partial_).c_str(), quoted_path(path_).c_str()));
  }
  if (rename(partial_.c_str(), path_.c_str()) != 0) {
    return failed_io(format("rename %s to", quoted_path(partial_).c_str()), path_, errno);
  }
  made_ = false;
  return sync_directory_of(path_);
}

// ---- loading ----

class Loading {
 public:
  Loading(Shard& shard, Optimizer* optimizer, const std::string& path)
      : shard_(shard), optimizer_(optimizer), path_(path), call_(*shard.comm(), "shard_load") {}
  Loading(const Loading&) = delete;
  Loading& operator=(const Loading&) = delete;

  Status run() {
    const Status found = find();
    DT_TRY(call_.agree_on({found}, digest_,
                          "read different files; give the same path of the same file system on "
                          "all ranks, and an optimizer on all or on none"));
    DT_TRY(call_.agree({read()}));
    return shard_.updated(stream_of(pipe_));
  }

 private:
  Status find();
  Status sample();
  Status read_steps();
  Status read();

  Shard& shard_;
  Optimizer* const optimizer_;
  const std::string path_;
  FileCall call_;
  std::unique_ptr<DevicePipe> pipe_;
  FileDescriptor file_;
  std::vector<FileTensor> tensors_;  // with their places in the file
  std::vector<Shard::Piece> pieces_;
  std::vector<int64_t> steps_;  // by parameter
  int64_t digest_ = 0;          // of what this rank read before the pieces
};

/// Everything but the pieces themselves.
Status Loading::find() {
  DT_TRY_VALUE(pipe_, pipe_of(shard_));
  DT_TRY_VALUE(pieces_, all_pieces(shard_, stream_of(pipe_)));
  FileOptimizer names;
  if (optimizer_ != nullptr) {
    names = names_of(*optimizer_);
    DT_TRY(optimizer_->settle());
  }
  const FileOptimizer* const wanted = optimizer_ != nullptr ? &names : nullptr;
  DT_TRY_VALUE(FilePlan plan, plan_file(shard_.params(), wanted));
  tensors_ = std::move(plan.tensors);
  int64_t data_begin = 0;
  DT_TRY_VALUE(const FileTable table,
               read_table(path_, "dt_shard_save", &file_, &data_begin, &digest_));
  const std::string where = "cannot load " + quoted_path(path_);
  DT_TRY(find_tensors(table, data_begin, wanted, &tensors_).within(where));
  DT_TRY(sample());
  return optimizer_ != nullptr ? read_steps() : Status();
}

/// Two checkpoints of one model have the same header, so the digest covers both ends of each
/// tensor.
Status Loading::sample() {
  std::vector<char> part(kSampleBytes);
  for (const FileTensor& tensor : tensors_) {
    const int64_t all = tensor.count * dtype_bytes(tensor.dtype);
    const int64_t bytes = std::min(kSampleBytes, all);
    for (const int64_t begin : {tensor.begin, tensor.begin + all - bytes}) {
      const int error = read_all(file_.get(), {part.data(), begin, bytes});
      if (error != 0) return failed_io("read", path_, error);
      digest_ = static_cast<int64_t>(
          xxh64(part.data(), static_cast<size_t>(bytes), static_cast<uint64_t>(digest_)));
    }
  }
  return {};
}

Status Loading::read_steps() {
  steps_.resize(pieces_.size());
  for (const Extent& extent : extents_of_steps(tensors_, &steps_)) {
    if (const int error = read_all(file_.get(), extent)) return failed_io("read", path_, error);
  }
  const auto bad = std::find_if(steps_.begin(), steps_.end(),
                                [](int64_t each) { return each < 0 || each > kMostSteps; });
  if (bad == steps_.end()) return {};
  return Status(Code::kInvalidArgument,
                format("cannot load %s: parameter #%zu has taken %lld steps there; give a file "
                       "that dt_shard_save wrote",
                       quoted_path(path_).c_str(), static_cast<size_t>(bad - steps_.begin()),
                       static_cast<long long>(*bad)));
}

Status Loading::read() {
  const auto extents = extents_of(shard_, optimizer_, tensors_, pieces_, false, stream_of(pipe_));
  Status read = extents.status();
  if (read.ok()) {
    read = transfer_all(pipe_.get(), extents.value(), /*up=*/true, [&](const Extent& extent) {
      const int error = read_all(file_.get(), extent);
      return error == 0 ? Status() : failed_io("read", path_, error);
    });
  }
  shard_.changed();
  if (optimizer_ != nullptr) {
    std::vector<bool> has_master(steps_.size());
    for (const FileTensor& tensor : tensors_) {
      if (tensor.role == FileTensor::Role::kMaster) {
        has_master[static_cast<size_t>(tensor.param)] = true;
      }
    }
    for (size_t i = 0; i < steps_.size(); ++i) {
      optimizer_->restored(static_cast<int32_t>(i), steps_[i], has_master[i]);
    }
  }
  return read;
}

}  // namespace

Status save_shard(Shard& shard, Optimizer* optimizer, const std::string& path) {
  DT_TRY(check_between_steps(shard, "dt_shard_save"));
  return Saving(shard, optimizer, path).run();
}

Status load_shard(Shard& shard, Optimizer* optimizer, const std::string& path) {
  DT_TRY(check_between_steps(shard, "dt_shard_load"));
  return Loading(shard, optimizer, path).run();
}

}  // namespace dt::training
