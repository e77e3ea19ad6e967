package engine

import (
	"fmt"
	"path/filepath"
	"strings"
)

// OwnNetwork reports whether the container has a network that is made for it.
func (s ContainerSpec) OwnNetwork() bool { return s.Network == NetworkOwn && s.Join == "" }

// Check refuses a spec that breaks a rule of the contract, which is the same for every engine. The
// engine checks rules that depend on itself, its host or the image. Errors wrap [ErrInvalid] and
// name the field.
func (s ContainerSpec) Check() error {
	if err := s.checkNetwork(); err != nil {
		return err
	}
	targets := map[string]bool{}
	for _, m := range s.Mounts {
		if err := m.check(); err != nil {
			return fmt.Errorf("mount %s: %w", m.Target, err)
		}
		target := filepath.Clean(m.Target)
		if targets[target] {
			return invalid("mount "+target, "there are two")
		}
		targets[target] = true
	}
	return nil
}

func (s ContainerSpec) checkNetwork() error {
	switch s.Network {
	case NetworkOwn, NetworkHost, NetworkNone:
	default:
		return invalid("network", "%q is none of own, host and none", s.Network)
	}
	if s.Network != NetworkOwn && s.Join != "" {
		return invalid("network", "%q, and the one of container %q: only one can be given", s.Network, s.Join)
	}
	if !s.OwnNetwork() && len(s.Publish) > 0 {
		return invalid("publish", "ports can be published by a container with a network of its own only")
	}
	for _, port := range s.Publish {
		if port < 1 || port > 65535 {
			return invalid("publish", "port %d is not in 1..65535", port)
		}
	}
	return nil
}

func (m Mount) check() error {
	sources := 0
	for _, source := range []string{m.HostPath, m.Volume, m.Directory} {
		if source != "" {
			sources++
		}
	}
	switch {
	case sources != 1:
		return invalid("source", "exactly one of host path, volume and directory must be set")
	case m.HostPath != "" && !filepath.IsAbs(m.HostPath):
		return invalid("host path", "%q is not absolute", m.HostPath)
	case m.Volume == "" && m.SubPath != "":
		return invalid("sub path", "it needs a volume")
	case m.SubPath != "" && !filepath.IsLocal(m.SubPath):
		return invalid("sub path", "%q must be relative and stay inside the volume", m.SubPath)
	case !filepath.IsAbs(m.Target) || strings.Contains(m.Target, "\x00"):
		return invalid("target", "%q is not an absolute path", m.Target)
	case filepath.Clean(m.Target) == "/":
		return invalid("target", "it must not be the root")
	}
	return nil
}

// invalid is an error about a field of a spec.
func invalid(field, format string, arguments ...any) error {
	return fmt.Errorf("%w: %s: %s", ErrInvalid, field, fmt.Sprintf(format, arguments...))
}
