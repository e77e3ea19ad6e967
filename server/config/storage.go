package config

import (
	"fmt"
	"path/filepath"
	"strings"
)

// Storage is the section [storage]: what sandboxes may mount.
type Storage struct {
	// HostVolumes is whether sandboxes may mount paths of the host at all.
	HostVolumes bool `toml:"host_volumes"`
	// AllowedHostPaths are the directories that mounted paths must be in: absolute, without ".",
	// ".." and empty parts. Empty: every path but those of the host's system (/etc, /root, /boot,
	// /usr, /var/lib and others), to keys with the role admin alone. Refused while
	// storage.host_volumes is false.
	AllowedHostPaths []string `toml:"allowed_host_paths"`
}

// normalise drops trailing slashes only: a path that goes up through ".." is an
// operator's mistake to report, not to resolve.
func (s *Storage) normalise() {
	for i, path := range s.AllowedHostPaths {
		if trimmed := strings.TrimRight(path, "/"); trimmed != "" {
			s.AllowedHostPaths[i] = trimmed
		}
	}
}

func (s Storage) check(p *problems) {
	if !s.HostVolumes && len(s.AllowedHostPaths) > 0 {
		p.add("storage.allowed_host_paths",
			"must be empty while storage.host_volumes is false (got %q)", s.AllowedHostPaths)
	}
	for i, path := range s.AllowedHostPaths {
		if !filepath.IsAbs(path) || filepath.Clean(path) != path {
			p.add(fmt.Sprintf("storage.allowed_host_paths[%d]", i),
				`must be an absolute path without ".", ".." and empty parts (got %q)`, path)
		}
	}
}
