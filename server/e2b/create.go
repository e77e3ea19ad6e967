package e2b

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"sandbox.internal/server/lifecycle"
)

const (
	// createWait is how many seconds a create waits until the sandbox runs. Clients give up after
	// 60 s and never learn the id: a sandbox that takes longer is deleted.
	createWait = 55
	// createTimeout is the timeout of a create that names none, in seconds.
	createTimeout = 300
	// cleanupTime bounds the removal of a sandbox whose client has gone.
	cleanupTime = 10 * time.Second
)

// createBody is the body of a create. The fields of type any are refused by their names when they
// are there.
type createBody struct {
	TemplateID          string            `json:"templateID"`
	Timeout             *int64            `json:"timeout"`
	Metadata            map[string]string `json:"metadata"`
	EnvVars             map[string]string `json:"envVars"`
	Secure              *bool             `json:"secure"` // a sandbox always is
	AllowInternetAccess *bool             `json:"allow_internet_access"`
	AutoPause           *bool             `json:"autoPause"`
	AutoPauseMemory     *bool             `json:"autoPauseMemory"`
	AutoResume          *struct {
		Enabled bool    `json:"enabled"`
		Policy  *string `json:"policy"`
	} `json:"autoResume"`
	Network *network `json:"network"`
	// MCP is for the program of the template.
	MCP json.RawMessage `json:"mcp"`

	VolumeMounts any `json:"volumeMounts"`
	IAM          any `json:"iam"`
}

// create answers when the sandbox runs.
func (x *exchange) create() {
	var body createBody
	if !x.readBody(&body) {
		return
	}
	template, ok := x.edge.Templates.find(body.TemplateID)
	if !ok {
		sendProblem(x.w, http.StatusNotFound, fmt.Sprintf("template %.128q: not found; there are: %s", body.TemplateID,
			strings.Join(x.edge.Templates.names(), ", ")))
		return
	}
	timeout := int64(createTimeout)
	if body.Timeout != nil {
		timeout = *body.Timeout
	}
	if refusal := body.check(timeout, template, x.edge.Suspend != nil); refusal != "" {
		sendProblem(x.w, http.StatusBadRequest, refusal)
		return
	}
	policy, refusal := body.policy()
	if refusal != "" {
		sendProblem(x.w, http.StatusBadRequest, refusal)
		return
	}
	now := x.edge.Clock()
	metadata := body.kept(template, timeout, now)
	spec := map[string]any{
		"image": map[string]string{"uri": template.Image}, "entrypoint": template.Entrypoint, "resourceLimits": template.limits(),
		"timeout":  int64(x.edge.expiryFor(now.Add(time.Duration(timeout)*time.Second), metadata).Sub(now) / time.Second),
		"metadata": metadata,
	}
	if len(body.EnvVars) > 0 {
		spec["env"] = body.EnvVars
	}
	if policy != nil {
		spec["networkPolicy"] = policy
	}
	x.start(spec, template)
}

// check returns why a create is refused, empty for one that is not. suspends says whether a sandbox
// can be paused without its memory.
func (b createBody) check(timeout int64, template Template, suspends bool) string {
	switch {
	case timeout < 1 || timeout > maxTimeout:
		return fmt.Sprintf("timeout: is how many seconds the sandbox lives: must be within 1 and %d, not %d", maxTimeout, timeout)
	case b.AutoPauseMemory != nil && !*b.AutoPauseMemory && !suspends:
		return "autoPauseMemory: " + keepsMemory
	case b.VolumeMounts != nil && !isEmpty(b.VolumeMounts):
		return "volumeMounts: volumes are not supported by this service"
	case b.IAM != nil && !isEmpty(b.IAM):
		return "iam: is not supported by this service"
	case len(b.MCP) > 0 && string(b.MCP) != "null" && template.Name != "mcp-gateway":
		return "mcp: needs the template mcp-gateway"
	}
	for _, key := range slices.Sorted(maps.Keys(b.Metadata)) {
		if strings.HasPrefix(key, reserved) {
			return fmt.Sprintf("metadata: key %.128q: keys that begin with %s are reserved", key, reserved)
		}
	}
	return ""
}

// isEmpty reports whether a JSON value asks for nothing.
func isEmpty(value any) bool {
	switch v := value.(type) {
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	case bool:
		return !v
	}
	return false
}

// kept returns the metadata of the sandbox: the client's, and what it asked for and the service has
// no field for.
func (b createBody) kept(template Template, timeout int64, now time.Time) map[string]string {
	metadata := map[string]string{}
	maps.Copy(metadata, b.Metadata)
	metadata[deadlineKey] = stamp(now.Add(time.Duration(timeout) * time.Second))
	metadata[timeoutKey] = strconv.FormatInt(timeout, 10)
	metadata[templateKey] = b.TemplateID
	set := func(key, value string, when bool) {
		if when {
			metadata[key] = value
		}
	}
	set(userKey, template.User, template.User != "")
	set(directoryKey, template.Directory, template.Directory != "")
	set(onTimeoutKey, pause, b.AutoPause != nil && *b.AutoPause)
	set(onTimeoutKey, pauseFiles, b.AutoPause != nil && *b.AutoPause && b.AutoPauseMemory != nil && !*b.AutoPauseMemory)
	set(autoResumeKey, yes, b.AutoResume != nil && b.AutoResume.Enabled)
	set(offlineKey, yes, b.AllowInternetAccess != nil && !*b.AllowInternetAccess)
	set(privateKey, yes, b.Network != nil && b.Network.AllowPublicTraffic != nil && !*b.Network.AllowPublicTraffic)
	return metadata
}

// start creates the sandbox and answers once it runs.
func (x *exchange) start(spec map[string]any, template Template) {
	created := x.askAndWait(createWait, http.MethodPost, sandboxesPath, spec)
	var accepted struct {
		ID     string `json:"id"`
		Status struct {
			State   lifecycle.State  `json:"state"`
			Reason  lifecycle.Reason `json:"reason"`
			Message string           `json:"message"`
		} `json:"status"`
	}
	if !created.OK() || json.Unmarshal(created.Body.Bytes(), &accepted) != nil {
		x.refuse(created)
		return
	}
	sandbox, err := x.edge.Backend.Read(x.r.Context(), accepted.ID)
	if x.r.Context().Err() != nil || err == nil && sandbox.Status.State == lifecycle.StatePending {
		x.abandon(accepted.ID)
		sendProblem(x.w, http.StatusServiceUnavailable, fmt.Sprintf(
			"the sandbox did not run within %d s, so it was deleted; a large image is pulled in the meantime, or beforehand with sandbox image pull", createWait))
		return
	}
	if err != nil || !isAlive(sandbox.Status.State) {
		reason, message := sandbox.Status.Reason, sandbox.Status.Message
		if err != nil {
			reason, message = accepted.Status.Reason, accepted.Status.Message
		}
		status, text := x.edge.Templates.notStarted(template, reason, message)
		sendProblem(x.w, status, text)
		return
	}
	x.edge.deadlines.set(sandbox.ID, endOf(sandbox))
	if token, ok := x.token(sandbox.ID); ok {
		sendJSON(x.w, http.StatusCreated, x.edge.detailed(sandbox, token))
	}
}

// notStarted returns the status and the message for a sandbox that did not start. An id that is no
// template of the service may be a wrong one: without such an image it is what E2B does not find.
func (t Templates) notStarted(template Template, reason lifecycle.Reason, message string) (status int, text string) {
	if _, named := t.Named[template.Name]; !named && reason == lifecycle.ReasonImagePullError {
		return http.StatusNotFound, fmt.Sprintf("template %.128q: not found; there are: %s, and no such image: %s", template.Name,
			strings.Join(t.names(), ", "), message)
	}
	return http.StatusInternalServerError, "the sandbox did not start: " + message
}

// abandon deletes a sandbox whose id no client will get.
func (x *exchange) abandon(id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.r.Context()), cleanupTime)
	defer cancel()
	x.edge.log(ctx, x.edge.Backend.Delete(ctx, id), id, "cannot delete a sandbox that did not run in time")
}
