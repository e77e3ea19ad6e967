package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	sandbox "sandbox.internal/clients/go"
)

// maxFileInput bounds a file that is sent as a part of a request, in bytes: the contract's limit
// of a body.
const maxFileInput = 1 << 20

// specFlags are the flags that describe a new sandbox.
type specFlags struct {
	name        string
	env         []string
	volumes     []string
	metadata    []string
	extensions  []string
	entrypoint  []string
	ofImage     bool // its main program is the image's own
	timeout     time.Duration
	cpu, memory string
	gpu         string
	policy      string
	network     string
	given       func(flag string) bool
	user        string
	class       string
	sleep       sleepFlags
}

func (f *specFlags) register(command *cobra.Command, lives time.Duration) {
	flags := command.Flags()
	f.given = flags.Changed
	flags.StringVar(&f.name, "name", "", "`NAME` of the sandbox, its metadata.name")
	flags.StringArrayVarP(&f.env, "env", "e", nil,
		"`NAME=VALUE` for its environment, or NAME to pass your own on")
	flags.StringArrayVarP(&f.volumes, "volume", "v", nil,
		"`SOURCE:PATH[:ro]`: mount a host path or a named volume")
	flags.StringArrayVarP(&f.metadata, "metadata", "l", nil, "`KEY=VALUE` of its metadata")
	flags.StringArrayVar(&f.extensions, "extension", nil,
		"`KEY=VALUE` of its extensions; the value is JSON or a string")
	flags.StringArrayVar(&f.entrypoint, "entrypoint", nil,
		"its main `PROGRAM`, again for each argument; else one that does nothing")
	flags.BoolVar(&f.ofImage, "image-entrypoint", false, "let its main program be the image's own")
	flags.DurationVar(&f.timeout, "timeout", lives,
		"how long it lives at most, from 1m to 24h; else the service's default")
	flags.StringVar(&f.cpu, "cpu", "", "`CORES` that it may use, such as 0.5 or 250m")
	flags.StringVarP(&f.memory, "memory", "m", "", "`BYTES` that it may use, such as 512Mi or 1g")
	flags.StringVar(&f.gpu, "gpu", "", "`NUMBER` of GPUs")
	flags.StringVar(&f.network, "network", "", "`none`: let it reach nothing; other rules are a --policy")
	flags.StringVar(&f.policy, "policy", "", "`FILE` of its network policy, in JSON or YAML")
	flags.StringVar(&f.class, "runtime-class", "",
		"`CLASS` of what runs it, one that `sandbox version -o yaml` lists")
	f.sleep.register(flags, "; else 1m")
	flags.StringVar(&f.user, "registry-user", "",
		"`USER` at the image's registry; the password is in $SANDBOX_REGISTRY_PASSWORD")
	acceptAliases(command)
}

// options checks the flags.
func (f *specFlags) options(t *tool, image string) (sandbox.CreateOptions, error) {
	o := sandbox.CreateOptions{
		Image: image, Entrypoint: f.entrypoint, Timeout: f.timeout,
		CPU: f.cpu, Memory: f.memory, GPU: f.gpu, RuntimeClass: f.class, ImageEntrypoint: f.ofImage,
	}
	if f.ofImage && len(f.entrypoint) > 0 {
		return o, usageErrorf("image-entrypoint: must not be given with --entrypoint")
	}
	if f.given("timeout") && (f.timeout < time.Minute || f.timeout > 24*time.Hour) {
		return o, usageErrorf("timeout: must be from 1m to 24h, not %s", f.timeout)
	}
	var err error
	if o.Lifecycle, err = f.sleep.options(); err != nil {
		return o, err
	}
	if f.user != "" {
		o.Username, o.Password = f.user, t.Env("SANDBOX_REGISTRY_PASSWORD")
	}
	if o.Memory, err = memorySize(f.memory); err != nil {
		return o, err
	}
	if o.Env, err = environment(f.env, t.Env); err != nil {
		return o, err
	}
	if o.Metadata, err = pairs("metadata", f.metadata); err != nil {
		return o, err
	}
	if f.name != "" {
		if o.Metadata == nil {
			o.Metadata = map[string]string{}
		}
		o.Metadata[nameKey] = f.name
	}
	for i, text := range f.volumes {
		volume, err := parseVolume(text, i)
		if err != nil {
			return o, err
		}
		o.Volumes = append(o.Volumes, volume)
	}
	if o.Extensions, err = parseExtensions(f.extensions); err != nil {
		return o, err
	}
	// An empty name, of a variable that is not set, is no sandbox without a policy.
	if f.policy != "" || f.given("policy") {
		if o.NetworkPolicy, err = readPolicy(f.policy); err != nil {
			return o, err
		}
	}
	switch {
	case f.network == "":
	case f.network != "none":
		return o, usageErrorf("network: must be none, not %q; --policy has other rules", f.network)
	case o.NetworkPolicy != nil:
		return o, usageErrorf("network: must not be given with --policy")
	default:
		o.NetworkPolicy = &sandbox.NetworkPolicy{DefaultAction: new(sandbox.Deny)}
	}
	return o, nil
}

// environment reads NAME=VALUE, and NAME for a variable that is passed on when it is set.
func environment(list []string, env func(string) string) (map[string]string, error) {
	if len(list) == 0 {
		return nil, nil
	}
	result := map[string]string{}
	for _, item := range list {
		name, value, given := strings.Cut(item, "=")
		if name == "" {
			return nil, usageErrorf("env: must be NAME=VALUE or NAME, not %q", item)
		}
		if !given {
			if value = env(name); value == "" {
				continue
			}
		}
		result[name] = value
	}
	return result, nil
}

// pairs reads KEY=VALUE.
func pairs(flag string, list []string) (map[string]string, error) {
	if len(list) == 0 {
		return nil, nil
	}
	result := map[string]string{}
	for _, item := range list {
		key, value, ok := strings.Cut(item, "=")
		if !ok || key == "" {
			return nil, usageErrorf("%s: must be KEY=VALUE, not %q", flag, item)
		}
		result[key] = value
	}
	return result, nil
}

// parseVolume reads SOURCE:PATH[:ro|:rw]. A source that is an absolute path is one of the host,
// any other names a volume.
func parseVolume(text string, index int) (sandbox.Volume, error) {
	rest := strings.TrimSuffix(strings.TrimSuffix(text, ":ro"), ":rw")
	source, target, ok := strings.Cut(rest, ":")
	if !ok || source == "" || !path.IsAbs(target) {
		return sandbox.Volume{}, usageErrorf(
			"volume: must be SOURCE:PATH, SOURCE:PATH:ro or SOURCE:PATH:rw, not %q", text)
	}
	volume := sandbox.Volume{Name: fmt.Sprintf("volume-%d", index+1), MountPath: target}
	if strings.HasSuffix(text, ":ro") {
		volume.ReadOnly = new(true)
	}
	if path.IsAbs(source) {
		volume.Host = &sandbox.HostSource{Path: source}
	} else {
		volume.Pvc = &sandbox.ClaimSource{ClaimName: source}
	}
	return volume, nil
}

// parseExtensions makes one JSON object of KEY=VALUE.
func parseExtensions(list []string) (json.RawMessage, error) {
	given, err := pairs("extension", list)
	if err != nil || given == nil {
		return nil, err
	}
	object := map[string]any{}
	for key, value := range given {
		if object[key] = value; json.Valid([]byte(value)) {
			object[key] = json.RawMessage(value)
		}
	}
	return json.Marshal(object)
}

// readPolicy reads a network policy; "-" is not special, because commands have uses of their own
// for the standard input.
func readPolicy(file string) (*sandbox.NetworkPolicy, error) {
	if file == "" {
		return nil, usageErrorf("policy: must be the name of a file, not empty")
	}
	info, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	if info.Size() > maxFileInput {
		return nil, fmt.Errorf("policy: %s: must be at most %d bytes", file, maxFileInput)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	// The contract's names are those of the JSON tags.
	var value, second any
	documents := yaml.NewDecoder(bytes.NewReader(text))
	if err := documents.Decode(&value); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("policy: %s: %w", file, err)
	}
	if err := documents.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("policy: %s: must be one YAML document", file)
	}
	text, err = json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("policy: %s: %w", file, err)
	}
	policy := &sandbox.NetworkPolicy{}
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(policy); err != nil {
		return nil, fmt.Errorf("policy: %s: %w", file, err)
	}
	if policy.DefaultAction == nil && len(policy.Egress) == 0 {
		return nil, fmt.Errorf("policy: %s: must have a defaultAction or egress rules; "+
			"leave --policy out to allow everything", file)
	}
	return policy, nil
}
