package app

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"sandbox.internal/server/config"
)

// pinDirectory is where host paths are pinned (box.Options), "" where the engine would not see what
// this process mounts.
func pinDirectory(cfg config.Config) string {
	socket := engineSocket(cfg.Environment.DockerHost)
	if cfg.Runtime.Type == config.RuntimeLocal { // the local engine opens what it mounts by itself, once
		return ""
	}
	if socket == "" || !cfg.Storage.HostVolumes || !sharesMounts(socket) {
		return ""
	}
	return filepath.Join(cfg.Server.DataDir, "pins")
}

// sharesMounts reports whether the process that made the socket sees the same mounts as this one.
func sharesMounts(socket string) bool {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return false
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return false
	}
	var peer *syscall.Ucred
	var peerErr error
	err = raw.Control(func(descriptor uintptr) {
		peer, peerErr = syscall.GetsockoptUcred(int(descriptor), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err != nil || peerErr != nil || peer.Pid <= 0 {
		return false
	}
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", peer.Pid))
	ours, ourErr := os.Readlink("/proc/self/ns/mnt")
	return err == nil && ourErr == nil && theirs == ours
}
