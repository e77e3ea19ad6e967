// Package config reads the lifecycle service's settings: a TOML file (the table
// "Runtime configuration (server)" of the lifecycle document, plus our own keys)
// and three environment variables.
//
// [Path] finds the file, [Load] reads it, [Config.Validate] holds the rules, [Print] shows what is
// in effect and [Init] is a commented example to start from. The package touches no flags, no
// environment and no standard streams: callers pass in what they have.
package config

import (
	"net/netip"
	"path/filepath"
	"slices"
)

// Config is the complete configuration of one lifecycle service.
type Config struct {
	Server     Server     `toml:"server"`
	Runtime    Runtime    `toml:"runtime"`
	Sandbox    Sandbox    `toml:"sandbox"`
	Local      Local      `toml:"local"`
	Docker     Docker     `toml:"docker"`
	Egress     Egress     `toml:"egress"`
	Ingress    Ingress    `toml:"ingress"`
	Storage    Storage    `toml:"storage"`
	Kubernetes Kubernetes `toml:"kubernetes"`
	E2B        E2B        `toml:"e2b"`
	Telemetry  Telemetry  `toml:"telemetry"`
	Webhooks   []Webhook  `toml:"webhooks"`

	// Environment comes from environment variables and has no place in the file.
	Environment Environment `toml:"-"`
	// File is where the configuration was read from, absolute; empty when it was not read from a
	// file, or that is not known.
	File string `toml:"-"`
	// FromDocker are the settings of [sandbox] that the file has in [docker], in order.
	FromDocker []string `toml:"-"`
}

// OwnPaths returns the files and directories of the service itself, absolute and clean: its
// records, keys, logs and settings.
func (c Config) OwnPaths() []string {
	var paths []string
	own := []string{
		c.File, c.Server.DataDir, c.Server.APIKeyFile, c.Server.SigningKey, c.Server.AuditLog,
		c.Local.DataDir, c.Sandbox.SeccompProfile, c.Kubernetes.KubeconfigPath,
	}
	for _, w := range c.Webhooks {
		own = append(own, w.SecretFile, w.PreviousSecretFile)
	}
	for _, path := range own {
		if filepath.IsAbs(path) {
			paths = append(paths, filepath.Clean(path))
		}
	}
	return paths
}

// Default returns the documented defaults; where the document has none but shows
// an example, the example's value. Env looks up environment variables, as
// os.Getenv does: the default of server.data_dir depends on them. The result
// is not valid by itself, because runtime.type and runtime.execd_image have no
// default.
func Default(env func(string) string) Config {
	return Config{
		Server:      defaultServer(env),
		Runtime:     defaultRuntime(),
		Sandbox:     defaultSandbox(),
		Local:       defaultLocal(),
		Docker:      defaultDocker(),
		Egress:      Egress{Upstream: []string{}},
		Ingress:     Ingress{Mode: IngressDirect},
		Storage:     Storage{HostVolumes: true, AllowedHostPaths: []string{}},
		Kubernetes:  defaultKubernetes(),
		E2B:         defaultE2B(),
		Telemetry:   defaultTelemetry(),
		Webhooks:    []Webhook{},
		Environment: defaultEnvironment(),
	}
}

// Validate reports every rule that the configuration breaks, one [*Problem]
// each, joined. It reads the seccomp profile, if there is one. [Load] calls it;
// only configurations that were built by hand need the call.
func (c Config) Validate() error {
	var p problems
	c.check(&p)
	c.Environment.check(&p)
	return p.join()
}

// check applies the rules of every section of the file.
func (c Config) check(p *problems) {
	c.Server.check(p)
	c.Runtime.check(p)
	c.Local.check(p)
	if ip, err := netip.ParseAddr(c.Server.Host); c.Runtime.Type == RuntimeLocal && err == nil && ip.Is6() && !ip.IsUnspecified() {
		p.add("server.host", "must be an IPv4 address, a host name or :: with the local runtime, which publishes ports for IPv4 alone (got %q)", c.Server.Host)
	}
	c.Sandbox.check(p, c.Environment, c.Runtime.Type)
	c.Docker.check(p)
	c.Egress.check(p)
	c.Ingress.check(p, c.Runtime.Type)
	c.Storage.check(p)
	c.Kubernetes.check(p, c.Runtime.Type)
	c.E2B.check(p)
	c.Telemetry.check(p)
	checkWebhooks(p, c.Webhooks, c.Runtime.Type)
}

// normalise brings values to the one spelling that the rules and the rest of
// the server accept: upper-case levels, capabilities without "CAP_", no "~". What
// the rules refuse keeps the spelling that the operator will search for.
func (c *Config) normalise(env func(string) string) {
	c.Server.normalise(env)
	c.Sandbox.normalise()
	c.Storage.normalise()
}

// Warnings returns settings that are allowed but that an operator should know
// about, one sentence each. They never contain a secret.
func (c Config) Warnings() []string {
	return slices.Concat(c.Server.warnings(), c.Sandbox.warnings(c.Runtime.Type, c.Key), c.Local.warnings(c.Runtime.Type),
		c.Docker.warnings(c.Runtime.Type, c.Sandbox.NetworkMode), c.Egress.warnings(c.Sandbox.NetworkMode, c.Runtime.Type, c.Key), c.Ingress.warnings(),
		c.Kubernetes.warnings(c.Runtime.Type))
}
