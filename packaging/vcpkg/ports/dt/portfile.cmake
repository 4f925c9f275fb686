# SPDX-License-Identifier: Apache-2.0
# An overlay port: it builds the tree that it lies in.
vcpkg_check_linkage(ONLY_DYNAMIC_LIBRARY)
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../../.." ABSOLUTE)

# Of libuv.a and libcrypto.a libdt takes copies of its own.
if(EXISTS "${CURRENT_INSTALLED_DIR}/lib/libuv.a" OR EXISTS "${CURRENT_INSTALLED_DIR}/lib/libuv_a.a")
  set(SHARED_LIBRARIES false)
else()
  set(SHARED_LIBRARIES true)
endif()
vcpkg_configure_meson(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    -Dtests=disabled
    -Ddocs=disabled
    -Dcuda=disabled
    -Dpython=disabled
    -Djava=disabled
    -Dcsharp=disabled
    -Dshared_libraries=${SHARED_LIBRARIES}
    -Dcpp_std=c++20
    --unity=on)
vcpkg_install_meson()
vcpkg_fixup_pkgconfig()
# The command finds its worker and its data relative to itself.
file(MAKE_DIRECTORY "${CURRENT_PACKAGES_DIR}/tools/dt/share")
foreach(folder bin libexec share/dt)
  file(RENAME "${CURRENT_PACKAGES_DIR}/${folder}" "${CURRENT_PACKAGES_DIR}/tools/dt/${folder}")
endforeach()
# vcpkg looks for CMake files in share, one folder nearer to the prefix.
file(RENAME "${CURRENT_PACKAGES_DIR}/lib/cmake/dt" "${CURRENT_PACKAGES_DIR}/share/dt")
vcpkg_replace_string("${CURRENT_PACKAGES_DIR}/share/dt/dtConfig.cmake"
  "{CMAKE_CURRENT_LIST_DIR}/../../.." "{CMAKE_CURRENT_LIST_DIR}/../..")
file(REMOVE_RECURSE
  "${CURRENT_PACKAGES_DIR}/lib/cmake"
  "${CURRENT_PACKAGES_DIR}/debug/bin"
  "${CURRENT_PACKAGES_DIR}/debug/include"
  "${CURRENT_PACKAGES_DIR}/debug/lib/cmake"
  "${CURRENT_PACKAGES_DIR}/debug/libexec"
  "${CURRENT_PACKAGES_DIR}/debug/share")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/dt")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE" "${SOURCE_PATH}/THIRD_PARTY_LICENSES.txt")
