package engine

import "path/filepath"

// HostPaths are the sockets and directories of the container engines that a host may have, as they
// lie by default: access to any of them is access to the host. They are absolute and clean; not all
// of them need exist. It is for [Info].OwnPaths.
func HostPaths() []string {
	paths := []string{"/var/lib/docker", "/var/lib/containerd", "/var/lib/containers"}
	for _, run := range []string{"/run", "/var/run"} {
		for _, name := range []string{
			"docker.sock", "docker", "containerd", "podman", "crio", "cri-dockerd.sock", "sandbox-local",
		} {
			paths = append(paths, filepath.Join(run, name))
		}
	}
	return paths
}
