#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# hermetic.sh FOLDER COMMAND...: runs a command without what its user or a launcher has set for dt: HOME and
# XDG_CONFIG_HOME are in FOLDER, which it makes, and DT_* and the variables of all launchers are unset. Folders of
# LD_LIBRARY_PATH that hold a libdt count only in the build folder, which is two above FOLDER. A variable TEST_NAME
# becomes NAME: so a test gets a setting of its own. `meson test` runs every test in this way.
set -euo pipefail

folder=$1
shift
for name in $(compgen -e); do
  case $name in
    DT_* | NO_COLOR | OMP_NUM_THREADS) ;;
    AWS_BATCH_* | AZUREML_* | AZ_BATCH* | CLUSTER_SPEC | FLUX_* | GROUP_* | HOROVOD_* | HYDRA_* | HYDI_*) ;;
    I_MPI_* | JOB_COMPLETION_INDEX | JSM_* | KUBERNETES_* | LOCAL_* | LSB_* | MASTER_* | MPI* | MV2_* | MVP_*) ;;
    CROSS_* | NODE_RANK | OMPI_* | PALS_* | PBS_* | PET_* | PMI_* | PMIX_* | PRTE_* | RANK | ROLE_* | SLURM*) ;;
    SM_* | TF_CONFIG | TORCHELASTIC_* | WORLD_SIZE) ;;
    *) continue ;;
  esac
  unset "$name"
done
for name in $(compgen -e TEST_); do
  export "${name#TEST_}=${!name}"
  unset "$name"
done
# The loader looks there before it looks next to a package's own library.
if [ -n "${LD_LIBRARY_PATH:-}" ]; then
  build=$(dirname "$(dirname "$folder")")
  kept=
  IFS=: read -ra libraries <<< "$LD_LIBRARY_PATH"
  for each in "${libraries[@]}"; do
    if [[ $each/ != "$build"/* ]] && compgen -G "$each/libdt*.so*" > /dev/null; then continue; fi
    kept+=${kept:+:}$each
  done
  export LD_LIBRARY_PATH=$kept
  [ -n "$kept" ] || unset LD_LIBRARY_PATH
fi
# Compiler caches stay where they are.
[ -n "${XDG_CACHE_HOME:-}" ] || [ -z "${HOME:-}" ] || export XDG_CACHE_HOME=$HOME/.cache
export HOME=$folder XDG_CONFIG_HOME=$folder/.config
mkdir -p "$XDG_CONFIG_HOME"
exec "$@"
