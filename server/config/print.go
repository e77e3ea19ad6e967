package config

import (
	"bytes"
	_ "embed" // for the example file
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// maskedSecret stands for a secret in what Print writes. [Load] refuses it.
const maskedSecret = "********"

// Print writes the effective values as TOML, and what came from the environment
// as comments. [Load] reads the output back to an equal Config, except that
// server.api_key and the secrets of webhooks are masked: Load refuses the mask until the real value
// is put back, rather than start a server whose key is known or that has none.
func Print(w io.Writer, c Config) error {
	var out bytes.Buffer
	fmt.Fprintf(&out, "# Effective configuration of the lifecycle service.\n")
	fmt.Fprintf(&out, "# From the environment:\n#   %s=%s\n#   %s=%d\n",
		envDockerHost, c.Environment.DockerHost, envPendingFailureTTL,
		c.Environment.PendingFailureTTL)
	if c.Server.APIKeyFile != "" {
		c.Server.APIKey = "" // it is read from there again
	}
	if c.Server.APIKey != "" {
		c.Server.APIKey = maskedSecret
		fmt.Fprintf(&out,
			"# server.api_key is set but not shown: put it back before you load this file.\n")
	}
	c.Webhooks = slices.Clone(c.Webhooks)
	for i := range c.Webhooks {
		current, previous := c.Webhooks[i].secrets(webhookKey(i))
		for _, secret := range []webhookSecret{current, previous} {
			if secret.file != "" {
				*secret.value = ""
			}
			if *secret.value != "" {
				*secret.value = maskedSecret
				fmt.Fprintf(&out, "# %s is set but not shown: put it back before you load this file.\n", secret.key)
			}
		}
	}
	out.WriteByte('\n')
	if err := toml.NewEncoder(&out).Encode(c); err != nil {
		return fmt.Errorf("encode configuration: %w", err)
	}
	_, err := w.Write(out.Bytes())
	return err
}

//go:embed example.toml
var example string

// Init returns a commented example file with every key. It gives the defaults and a
// docker runtime with the execd image that `make images` builds, but is closed: it
// demands apiKey, listens on 127.0.0.1 and permits no path of the host to be mounted.
func Init(apiKey string) []byte {
	return bytes.Replace([]byte(example), []byte("API_KEY"), []byte(apiKey), 1)
}

// WithImage returns an example with a default image for sandboxes whose users name none.
func WithImage(example []byte, image string) []byte {
	return bytes.Replace(example, []byte(`#default_image = "python:3.12"`), []byte("default_image = "+strconv.Quote(image)), 1)
}

// Machine is what a configuration is written for; what is zero is not known.
type Machine struct {
	CPUs        int
	MemoryBytes int64
	// BoundsDisk is whether the local engine can bound what a sandbox writes: there are mkfs.ext4
	// and loop devices.
	BoundsDisk bool
}

// What sandboxes get in an example's configuration when their requests ask for nothing, unless the
// machine has less.
const (
	initCPUs      = 2
	initMemoryMiB = 2048
	initDiskMiB   = 10240
)

// Fit returns an example for the machine: a sandbox that asks for nothing gets at most its
// processors and half of its memory, and on the local engine may write 10 GiB where that can be
// bounded.
func Fit(example []byte, m Machine) []byte {
	text := string(example)
	if m.CPUs > 0 && m.CPUs < initCPUs {
		text = strings.Replace(text, `default_cpu = "2"`, `default_cpu = "`+strconv.Itoa(m.CPUs)+`"`, 1)
	}
	if half := m.MemoryBytes >> 21; m.MemoryBytes > 0 && half < initMemoryMiB {
		text = strings.Replace(text, `default_memory = "2Gi"`, `default_memory = "`+strconv.FormatInt(max(half, 16), 10)+`Mi"`, 1)
	}
	if m.BoundsDisk && strings.Contains(text, "\ntype = \"local\"") {
		text = strings.Replace(text, "\ndisk_mib = 0", "\ndisk_mib = "+strconv.Itoa(initDiskMiB), 1)
	}
	return []byte(text)
}

// InitLocal is Init for the local engine, which loads the images of the archives, absolute paths,
// at its start. Keys for Docker alone have their defaults, so that they cause no warning.
func InitLocal(apiKey string, archives []string) []byte {
	list := make([]string, len(archives))
	for i, path := range archives {
		list[i] = strconv.Quote(path)
	}
	text := string(Init(apiKey))
	for _, change := range [][2]string{
		{`type = "docker"`, `type = "local"`},
		{"spare_networks = 2", "spare_networks = 0"},
		{"server.host, server.api_key and storage.host_volumes keep the service closed,\n" +
			"# docker.spare_networks shortens creates. A line", "server.host, server.api_key and storage.host_volumes keep the service closed,\n" +
			"# local.archives has the images of this machine. A line"},
		{"archives = []", "archives = [" + strings.Join(list, ", ") + "]"},
	} {
		text = strings.Replace(text, change[0], change[1], 1)
	}
	return []byte(text)
}
