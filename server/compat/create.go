package compat

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"sandbox.internal/server/lifecycle"
)

// createWait is how many seconds a create waits until the sandbox runs. SDKs of OpenSandbox give up
// after 30 s; a sandbox that takes longer is answered while it is Pending.
const createWait = 25

// create answers when the sandbox runs, as OpenSandbox does, or cannot.
func (x *exchange) create() {
	fields, ok := x.takeObject()
	if !ok {
		return
	}
	secured := is(fields["secureAccess"], "true")
	if code, message := x.edge.toSpec(fields); message != "" {
		x.refuse(code, message)
		return
	}
	if secured && x.isOpen() {
		x.refuse(codeInvalidParameter, "secureAccess: this service has no API key, so that every client could read the sandbox's token")
		return
	}
	created := x.askAndWait(createWait, http.MethodPost, sandboxesPath, encode(fields))
	var accepted struct {
		ID string `json:"id"`
	}
	if !created.OK() || json.Unmarshal(created.Body.Bytes(), &accepted) != nil {
		created.send(x.w)
		return
	}
	x.edge.expiryChanged()
	// The answer to the create has no extensions.
	found := x.ask(http.MethodGet, sandboxesPath+"/"+accepted.ID, nil, nil)
	if !found.OK() { // it was deleted since
		found = created
	}
	var sandbox object
	var state stateOf
	if json.Unmarshal(found.Body.Bytes(), &sandbox) != nil || json.Unmarshal(found.Body.Bytes(), &state) != nil {
		created.send(x.w)
		return
	}
	if state.neverRan() {
		created.Header().Del("Location")
		created.fail(x.w, http.StatusInternalServerError, x.edge.startCode(state.Status.Reason), state.Status.Message)
		return
	}
	sandbox = fromSandbox(sandbox)
	delete(sandbox, "image")
	created.sendJSON(x.w, sandbox)
}

// neverRan reports whether the sandbox failed before it ran.
func (s stateOf) neverRan() bool {
	ran := []lifecycle.Reason{lifecycle.ReasonEntrypointExited, lifecycle.ReasonOOMKilled, lifecycle.ReasonRemovedExternally, lifecycle.ReasonDaemonReplaced}
	return s.Status.State == lifecycle.StateFailed && !slices.Contains(ran, s.Status.Reason)
}

// startCode returns the code of OpenSandbox for a sandbox that did not start.
func (e *Edge) startCode(reason lifecycle.Reason) string {
	switch {
	case e.Cluster:
		return "KUBERNETES::POD_FAILED"
	case reason == lifecycle.ReasonImagePullError:
		return "DOCKER::SANDBOX_IMAGE_PULL_FAILED"
	}
	return "DOCKER::SANDBOX_START_FAILED"
}

// toSpec makes the body of a create one of this service. It returns the code and the text of a
// refusal for what OpenSandbox refuses, and for what would have no effect here. Another field that
// asks for what the service cannot do stays, so that it is refused by its name.
func (e *Edge) toSpec(fields object) (code, refusal string) {
	dropNulls(fields)
	for _, name := range []string{"env", "metadata", "resourceLimits", "platform", "credentialProxy"} {
		within(fields, name, dropNulls)
	}
	for _, check := range []func(object) (code, refusal string){checkMetadata, toEnv, e.checkExtensions, e.toPlatform, e.toRequests, e.toSecured} {
		if code, refusal := check(fields); refusal != "" {
			return code, refusal
		}
	}
	within(fields, "image", func(image object) {
		dropNulls(image)
		within(image, "auth", dropNulls)
	})
	within(fields, "resourceLimits", toQuantities)
	within(fields, "networkPolicy", toPolicy)
	if is(fields["credentialProxy"], `{"enabled":false}`) || is(fields["credentialProxy"], `{}`) {
		delete(fields, "credentialProxy")
	}
	var volumes []object
	if json.Unmarshal(fields["volumes"], &volumes) == nil && fields["volumes"] != nil {
		for _, volume := range volumes {
			dropNulls(volume)
			within(volume, "host", dropNulls)
			within(volume, "pvc", toClaim)
		}
		fields["volumes"] = encode(volumes)
	}
	if fields["timeout"] == nil {
		fields["timeout"] = json.RawMessage(strconv.Itoa(int(lifecycle.MaxTimeout / time.Second)))
		addMetadata(fields, expiryKey, never)
	}
	return "", ""
}

// addMetadata adds metadata that clients of OpenSandbox do not see.
func addMetadata(fields object, key, value string) {
	if fields["metadata"] == nil {
		fields["metadata"] = json.RawMessage("{}")
	}
	within(fields, "metadata", func(metadata object) { metadata[key] = quoted(value) })
}

func checkMetadata(fields object) (code, refusal string) {
	within(fields, "metadata", func(metadata object) {
		for _, key := range slices.Sorted(maps.Keys(metadata)) {
			if strings.HasPrefix(key, reservedPrefix) {
				code, refusal = "SANDBOX::INVALID_METADATA_LABEL", fmt.Sprintf("metadata: key %.128q: keys that begin with %s are reserved", key, reservedPrefix)
			}
		}
	})
	return code, refusal
}

const (
	// egressPrefix begins the variables that OpenSandbox gives to the egress sidecar, and never to
	// the sandbox.
	egressPrefix = "OPENSANDBOX_EGRESS_"
	// hooksVariable is OpenSandbox's own way of passing hooks to execd.
	hooksVariable = "OPENSANDBOX_LIFECYCLE"
)

// quietSettings are the variables of OpenSandbox's egress sidecar that may be left out without
// anything being allowed, refused or reported otherwise: the sidecar of this service has its own
// settings.
var quietSettings = []string{"OPENSANDBOX_EGRESS_LOG_LEVEL", "OPENSANDBOX_EGRESS_DNS_UPSTREAM_TIMEOUT", "OPENSANDBOX_EGRESS_METRICS_EXTRA_ATTRS"}

// toEnv takes away what is not the sandbox's: the settings of OpenSandbox's execd and of its egress
// sidecar.
func toEnv(fields object) (code, refusal string) {
	within(fields, "env", func(env object) {
		for _, name := range slices.Sorted(maps.Keys(env)) {
			switch {
			case lifecycle.ReservedEnv(name), slices.Contains(quietSettings, name):
				delete(env, name)
			case strings.HasPrefix(name, egressPrefix):
				code, refusal = codeInvalidParameter, fmt.Sprintf("env.%.128s: is no setting of the egress sidecar that a client may give; these are %s, which have no effect",
					name, strings.Join(quietSettings, ", "))
			case name == hooksVariable:
				code, refusal = codeInvalidParameter, fmt.Sprintf("env.%s: is reserved", name)
			}
		}
	})
	return code, refusal
}

// checkExtensions refuses what OpenSandbox does for an extension and this service does not:
// extensions are opaque to it otherwise.
func (e *Edge) checkExtensions(fields object) (code, refusal string) {
	var extensions object // which pass through byte for byte
	if fields["extensions"] == nil || json.Unmarshal(fields["extensions"], &extensions) != nil {
		return "", ""
	}
	const renewal = "access.renew.extend.seconds"
	if value, has := extensions[renewal]; has && !is(value, "null") {
		return codeInvalidParameter, fmt.Sprintf("extensions.%s: access does not renew sandboxes: renew them with POST renew-expiration, or create them without timeout", renewal)
	}
	if pool, has := extensions["poolRef"]; has && !is(pool, "null") && !is(pool, `""`) && !e.Cluster {
		return codeInvalidParameter, "extensions.poolRef: there are Pools on Kubernetes alone"
	}
	return "", ""
}

// architectures are Go's names of processors, by the others.
var architectures = map[string]string{"x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64", "arm64/v8": "arm64"}

// toPlatform notes the platform when it is this machine's, which sandboxes have anyway.
func (e *Edge) toPlatform(fields object) (code, refusal string) {
	if fields["platform"] == nil {
		return "", ""
	}
	var platform struct {
		OS   string `json:"os"`
		Arch string `json:"arch"`
	}
	if json.Unmarshal(fields["platform"], &platform) != nil || platform.OS == "" || platform.Arch == "" {
		return codeInvalidParameter, `platform: must be an object with os and arch, such as {"os": "linux", "arch": "amd64"}`
	}
	if e.Cluster {
		return codeInvalidParameter, "platform: cannot be chosen on Kubernetes: the sandboxes are on the nodes that the administrator has chosen"
	}
	platform.OS, platform.Arch = strings.ToLower(strings.TrimSpace(platform.OS)), strings.ToLower(strings.TrimSpace(platform.Arch))
	if name, other := architectures[platform.Arch]; other {
		platform.Arch = name
	}
	if platform.OS != runtime.GOOS || platform.Arch != runtime.GOARCH {
		return codeInvalidParameter, fmt.Sprintf("platform: the sandboxes of this service are %s/%s, not %.64s/%.64s", runtime.GOOS, runtime.GOARCH, platform.OS, platform.Arch)
	}
	delete(fields, "platform")
	addMetadata(fields, platformKey, platform.OS+"/"+platform.Arch)
	return "", ""
}

// toRequests takes away what to reserve of the machine's resources: one machine reserves nothing,
// so that only the limits count.
func (e *Edge) toRequests(fields object) (code, refusal string) {
	if fields["resourceRequests"] == nil {
		return "", ""
	}
	var requests map[string]*string
	if json.Unmarshal(fields["resourceRequests"], &requests) != nil {
		return codeInvalidParameter, "resourceRequests: must be an object of quantities"
	}
	if !e.Cluster {
		delete(fields, "resourceRequests")
	}
	within(fields, "resourceRequests", func(requests object) {
		dropNulls(requests)
		toQuantities(requests)
	})
	return "", ""
}

// memoryQuantity is how OpenSandbox writes bytes: with a unit in any case, or none.
var memoryQuantity = regexp.MustCompile(`^\s*([0-9]{1,18})\s*([kKmMgGtT]?)([iI]?)[bB]?\s*$`)

// toQuantities writes quantities as this service reads them.
func toQuantities(limits object) {
	var memory string
	if json.Unmarshal(limits["memory"], &memory) != nil {
		return
	}
	match := memoryQuantity.FindStringSubmatch(memory)
	if match == nil {
		return
	}
	unit := strings.ToUpper(match[2])
	switch {
	case unit == "" && match[3] == "": // bytes, which the service takes with a unit only
		bytes, err := strconv.ParseInt(match[1], 10, 64)
		if err != nil {
			return
		}
		match[1], unit = strconv.FormatFloat(float64(bytes)/1024, 'f', -1, 64), "Ki"
	case unit == "K" && match[3] == "":
		unit = "k"
	case match[3] != "":
		unit += "i"
	}
	limits["memory"] = quoted(match[1] + unit)
}

// toPolicy writes the default out that OpenSandbox has and the service has not.
func toPolicy(policy object) {
	dropNulls(policy)
	if len(policy) > 0 && policy["defaultAction"] == nil {
		policy["defaultAction"] = quoted("deny")
	}
}

// toClaim takes away what the service does anyway, and the hints for what it does not do.
func toClaim(claim object) {
	dropNulls(claim)
	if is(claim["createIfNotExists"], "true") {
		delete(claim, "createIfNotExists")
	}
	if is(claim["deleteOnSandboxTermination"], "false") {
		delete(claim, "deleteOnSandboxTermination")
	}
	for _, hint := range []string{"storageClass", "storage", "accessModes"} {
		delete(claim, hint)
	}
}
