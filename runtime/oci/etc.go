package oci

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/bundle"
	"sandbox.internal/runtime/oci/internal/layout"
)

// The files below /etc that an engine and not the image provides. The container can write to them,
// so they lie on its disk: what bounds that bounds them.
const (
	hostsFile    = "hosts"
	hostnameFile = "hostname"
	resolvFile   = "resolv.conf"
	// machineIDFile is provided where the image, or a snapshot, has a machine id.
	machineIDFile = "machine-id"
)

// localHosts are for a network without IPv6, where a name that has the address ::1 as well costs
// whoever connects to it an attempt.
const localHosts = "127.0.0.1	localhost\n"

// localHosts6 are what a network with IPv6 has besides.
const localHosts6 = `::1	localhost ip6-localhost ip6-loopback
fe00::	ip6-localnet
ff00::	ip6-mcastprefix
ff02::1	ip6-allnodes
ff02::2	ip6-allrouters
`

// writeEtc writes them for the container. It may run beside what changes the container's record.
func (s *start) writeEtc() error {
	c, joined, own := s.container, s.joined, s.own
	name := bundle.Hostname(c.ID, s.spec.Network)
	hosts, resolv := localHosts, ""
	if joined == nil && own == nil {
		hosts += localHosts6
	}
	switch {
	case joined != nil:
		if run := joined.Record().Run; run != nil && run.Network != nil {
			hosts += hostLine(run.Network.Address, name)
		}
		file, err := openEtc(joined, resolvFile)
		if err != nil {
			return err
		}
		content, err := readSmall(file)
		if err != nil {
			return err
		}
		resolv = string(content)
	case own != nil:
		hosts += hostLine(own.Address, name)
		resolv = resolvConf(own.Nameservers)
	case s.spec.Network == engine.NetworkHost:
		for file, content := range map[string]*string{hostsFile: &hosts, resolvFile: &resolv} {
			read, err := os.ReadFile(filepath.Join("/etc", file))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			*content = string(read)
		}
	}
	files := map[string]string{hostsFile: hosts, hostnameFile: name + "\n", resolvFile: resolv}
	has, err := s.hasMachineID()
	if err != nil {
		return err
	}
	if has {
		files[machineIDFile] = machineID(c.ID) + "\n"
	}
	directory := diskPath(c, layout.Etc)
	for file, content := range files {
		if err := writeShared(filepath.Join(directory, file), []byte(content)); err != nil {
			return err
		}
	}
	return s.writeShown(directory)
}

// hasMachineID reports whether the container is given a machine id of its own. What the container
// itself has written since its first start stays where nothing is mounted over it. Processes that
// are restored get the mounts that they had: the runtime refuses others, and a machine id that they
// have written is part of the snapshot.
func (s *start) hasMachineID() (bool, error) {
	if s.restore != "" {
		return s.memory.MachineID, nil
	}
	return bundle.HasMachineID(slices.Concat(s.image.Layers, s.chain))
}

// machineID returns the machine id of a container, which is the same at each of its starts.
func machineID(id string) string {
	sum := sha256.Sum256([]byte("machine-id of container " + id))
	random := sum[:16]
	random[6], random[8] = random[6]&0x0f|0x40, random[8]&0x3f|0x80 // a UUID of version 4, as systemd makes it
	return hex.EncodeToString(random)
}

func hostLine(address netip.Addr, name string) string { return fmt.Sprintf("%s\t%s\n", address, name) }

func resolvConf(servers []string) string {
	var text strings.Builder
	for _, server := range servers {
		if _, err := netip.ParseAddr(server); err == nil {
			text.WriteString("nameserver " + server + "\n")
		}
	}
	return text.String()
}

// writeShared writes a file that every user of the container may read.
func writeShared(path string, content []byte) error {
	if err := os.WriteFile(path, content, 0o644); err != nil { //nolint:gosec // the container's users must be able to read it
		return err
	}
	return os.Chmod(path, 0o644) //nolint:gosec // whatever the service's umask is
}

// readSmall reads and closes a file that a container may have been able to write.
func readSmall(file *os.File) ([]byte, error) {
	const limit = 64 << 10
	defer func() { _ = file.Close() }()
	return io.ReadAll(io.LimitReader(file, limit))
}
