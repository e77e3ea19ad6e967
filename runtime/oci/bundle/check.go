package bundle

import (
	"regexp"
	"runtime"
	"slices"
	"strings"

	"sandbox.internal/runtime/engine"
)

const (
	// minMemory is Docker's: with less, runtimes fail in ways that say nothing.
	minMemory = 6 << 20
	minCPUs   = 1e7 // a hundredth of a core
)

// Check refuses what can be refused before anything of the container exists, as Docker's create
// call does, of a Spec that passes its own check. The errors wrap [engine.ErrInvalid]. It needs
// Spec, Image and Runtime only.
func Check(in Input) error {
	for _, check := range []func(Input) error{
		checkNetwork, checkSysctls, checkResources, checkProcess, checkSecurity,
	} {
		if err := check(in); err != nil {
			return err
		}
	}
	return nil
}

func checkNetwork(in Input) error {
	if in.Runtime.OwnKernel && in.Spec.Network == engine.NetworkHost {
		return invalid("network", "%s has a network of its own, which cannot be the host's", in.Runtime.Name)
	}
	return nil
}

func checkSysctls(in Input) error {
	ownNetwork := in.Spec.OwnNetwork() || in.Spec.Network == engine.NetworkNone
	for name := range in.Spec.Sysctls {
		if err := checkSysctl(name, ownNetwork); err != nil {
			return err
		}
	}
	return nil
}

var sysctlName = regexp.MustCompile(`^[a-zA-Z0-9_-]+(\.[a-zA-Z0-9_-]+)+$`)

// checkSysctl permits parameters of the container's own namespaces: all others are the host's.
func checkSysctl(name string, ownNetwork bool) error {
	ipc := []string{
		"kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.sem", "kernel.shmall",
		"kernel.shmmax", "kernel.shmmni", "kernel.shm_rmid_forced",
	}
	switch {
	case !sysctlName.MatchString(name):
		return invalid("sysctls", "%q is not the name of a kernel parameter", name)
	case strings.HasPrefix(name, "net."):
		if !ownNetwork {
			return invalid("sysctls", "%s belongs to a network that is not the container's own", name)
		}
		return nil
	case strings.HasPrefix(name, "fs.mqueue."), slices.Contains(ipc, name):
		return nil
	}
	return invalid("sysctls", "%s does not belong to a namespace", name)
}

func checkResources(in Input) error {
	r, processors := in.Spec.Resources, runtime.NumCPU()
	switch {
	case r.NanoCPUs < 0, r.NanoCPUs > 0 && r.NanoCPUs < minCPUs, r.NanoCPUs > int64(processors)*1e9:
		return invalid("CPUs", "%g is not in 0.01..%d, the processors of this machine",
			float64(r.NanoCPUs)/1e9, processors)
	case r.MemoryBytes < 0, r.MemoryBytes > 0 && r.MemoryBytes < minMemory:
		return invalid("memory", "%d bytes are less than the least, %d", r.MemoryBytes, minMemory)
	case r.PIDs < 0:
		return invalid("processes", "%d is negative", r.PIDs)
	case r.GPUs < engine.AllGPUs:
		return invalid("GPUs", "%d is negative", r.GPUs)
	case in.Spec.LogBytes < 0:
		return invalid("log", "%d bytes are negative", in.Spec.LogBytes)
	}
	return nil
}

func checkProcess(in Input) error {
	arguments := arguments(in)
	if len(arguments) == 0 {
		return invalid("entrypoint", "neither the container nor its image has a command")
	}
	for _, argument := range arguments {
		if strings.Contains(argument, "\x00") {
			return invalid("entrypoint", "%q contains a zero byte", argument)
		}
	}
	for name, value := range in.Spec.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return invalid("environment", "the variable %q: its name must not be empty nor contain =, and neither name nor value a zero byte", name)
		}
	}
	if directory := in.Image.WorkingDir; strings.Contains(directory, "\x00") {
		return invalid("working directory", "%q contains a zero byte", directory)
	}
	return nil
}

func checkSecurity(in Input) error {
	capabilities, err := capabilities(in.Spec.Security)
	if err != nil {
		return err
	}
	if strings.ContainsAny(in.Spec.Security.AppArmorProfile, " \t\n\x00") {
		return invalid("AppArmor profile", "%q contains a space", in.Spec.Security.AppArmorProfile)
	}
	_, err = filters.get(in.Spec.Security.SeccompProfile, capabilities)
	return err
}
