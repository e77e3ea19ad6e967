package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/cluster/view"
	"sandbox.internal/server/lifecycle"
)

// keySpace is the namespace of the ids that are derived from Idempotency-Keys (RFC 9562, version
// 5).
var keySpace = uuid.NewSHA1(uuid.NameSpaceDNS, []byte("idempotency-key.sandbox.internal"))

// Create implements lifecycle.Backend. With an Idempotency-Key the id follows from owner and key,
// so that the API server itself lets only one of several creates through, whichever replicas they
// reach. The key holds for as long as the sandbox's record does.
func (c *Cluster) Create(ctx context.Context, spec lifecycle.Spec, options lifecycle.CreateOptions) (lifecycle.Sandbox, error) {
	took := options.Took
	if took == nil {
		took = func(string, time.Duration) {}
	}
	began := c.Clock()
	if err := spec.Validate(); err != nil {
		return lifecycle.Sandbox{}, err
	}
	if err := checkLifecycle(spec.Lifecycle); err != nil {
		return lifecycle.Sandbox{}, err
	}
	if spec.ImageEntrypoint {
		return lifecycle.Sandbox{}, lifecycle.Invalidf(
			"imageEntrypoint: must not be true on Kubernetes, where execd starts the entrypoint and the image's is not known: give the entrypoint")
	}
	if err := c.hostPaths().CheckVolumes(spec.Volumes, options.Role); err != nil {
		return lifecycle.Sandbox{}, err
	}
	bounded, digest := spec, "" // a repeated request is compared as it was sent
	if options.IdempotencyKey != "" {
		digest = spec.Digest()
	}
	id := newID(options)
	var b *v1alpha1.BatchSandbox
	var secret *secret
	pool, err := c.poolOf(ctx, spec.Extensions)
	if err == nil {
		bounded.Resources, err = boundedLimits(bounded, pool, options.Bounds)
	}
	if err == nil {
		b, secret, err = c.newBatch(ctx, id, bounded, pool, digest, options)
	}
	if err == nil {
		err = c.checkClaims(ctx, spec.Volumes, options)
	}
	if err == nil {
		var done func()
		if done, err = c.takePlace(ctx, id, bounded, options); err == nil {
			defer done()
		}
	}
	if err != nil && options.IdempotencyKey != "" {
		// What the request names, such as a Pool, may have changed since the sandbox was created.
		if sandbox, before := c.createdBefore(ctx, id, spec, options); !isNotFound(before) {
			return sandbox, before
		}
	}
	if err != nil {
		return lifecycle.Sandbox{}, err
	}
	validated := c.Clock()
	took("validate", validated.Sub(began))

	e, err := c.insert(ctx, b, secret)
	if apierrors.IsAlreadyExists(err) && options.IdempotencyKey != "" {
		sandbox, err := c.createdBefore(ctx, id, spec, options)
		if isNotFound(err) {
			err = lifecycle.Conflictf("Idempotency-Key: the sandbox %s that %q created is gone", id, options.IdempotencyKey)
		}
		return sandbox, err
	}
	if err != nil {
		return lifecycle.Sandbox{}, err
	}
	durable := c.Clock()
	took("durable", durable.Sub(validated))
	c.Observer.StageDone(lifecycle.StageAccepted, durable.Sub(began))
	c.Logger.Info().Str("sandbox_id", b.Name).Str("image", spec.Image).Str("owner", options.Owner).Time("expires_at", e.Sandbox.ExpiresAt).Msg("sandbox accepted")
	return e.Sandbox, nil
}

// takePlace makes room for a new sandbox among those of the view, which has what other replicas
// have answered. done must be called once the view has the sandbox, or there will be none.
func (c *Cluster) takePlace(ctx context.Context, id string, spec lifecycle.Spec, options lifecycle.CreateOptions) (done func(), err error) {
	limits, _ := spec.Resources.Parse() // Validate has
	request := lifecycle.Request{
		ID: id, Owner: options.Owner, Limits: limits, MaxSandboxes: options.MaxSandboxes, Bounds: options.Bounds,
	}
	if options.MaxSandboxes > 0 || c.MaxSandboxes > 0 || len(options.Bounds.Total) > 0 {
		c.catchUp(ctx)
	}
	if len(options.Bounds.Total) == 0 {
		return c.quota.TakeCounted(request, c.view)
	}
	return c.quota.Take(request, func(yield func(*lifecycle.Sandbox) bool) {
		for _, e := range c.view.All() {
			if !yield(&e.Sandbox) {
				return
			}
		}
	})
}

// insert writes the resource, and its Secret before it, so that it exists before a pod needs it. A
// client that leaves meanwhile does not stop it: a Secret alone would remain until the sweep finds
// it.
func (c *Cluster) insert(ctx context.Context, b *v1alpha1.BatchSandbox, secret *secret) (*view.Entry, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), view.CallTimeout)
	defer cancel()
	// The client of the API server repeats a request by itself after an answer with Retry-After. No
	// other Secret has the name.
	if err := c.write(ctx, b.Name, secret); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, refused(err)
	}
	err := c.api.Create(ctx, b)
	if apierrors.IsAlreadyExists(err) {
		err = c.adopt(ctx, b, secret.name, err)
	}
	switch {
	case err == nil:
	case apierrors.IsAlreadyExists(err):
		c.drop(b.Name, secret.name)
		return nil, err
	default:
		err = refused(err)
		var known *lifecycle.Error
		// Without a clear answer the sandbox may exist; then the sweep decides.
		if errors.As(err, &known) && known.Kind != lifecycle.KindUnavailable {
			c.drop(b.Name, secret.name)
		}
		return nil, err
	}
	e, err := view.NewEntry(b)
	if err != nil {
		return nil, err
	}
	var announced sync.WaitGroup
	defer announced.Wait()
	announced.Go(func() { c.announce(ctx, e.Version) })
	// When this fails, the sweep does it.
	if err := c.own(ctx, b, secret.name); err != nil {
		c.Logger.Warn().Err(err).Str("sandbox_id", b.Name).Msg("cannot set the owner of the sandbox's Secret")
	}
	c.view.Put(e)
	return e, nil // as it was created, whatever has become of it meanwhile
}

// adopt reads the resource of the name into b when it is the one that b was, made by a request that
// was repeated. Otherwise it returns the conflict that it is given.
func (c *Cluster) adopt(ctx context.Context, b *v1alpha1.BatchSandbox, secret string, conflict error) error {
	var found v1alpha1.BatchSandbox
	err := c.api.Get(ctx, client.ObjectKeyFromObject(b), &found)
	switch {
	case apierrors.IsNotFound(err), err == nil && found.Annotations[view.AnnotationSecret] != secret:
		return conflict
	case err != nil:
		return err // then it is unknown, and the sweep decides about the Secret
	}
	found.DeepCopyInto(b)
	return nil
}

// refused turns what the API server has against a resource into what a client may see.
func refused(err error) error {
	switch {
	case apierrors.IsInvalid(err), apierrors.IsRequestEntityTooLargeError(err):
		return lifecycle.Invalidf("the cluster does not take the sandbox: %v", err)
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota"):
		return lifecycle.Conflictf("the namespace's quota does not allow another sandbox: %v", err)
	}
	return view.Explain(err)
}

// newID is the id of a new sandbox.
func newID(options lifecycle.CreateOptions) string {
	if options.IdempotencyKey == "" {
		return uuid.NewString()
	}
	return uuid.NewSHA1(keySpace, []byte(options.Owner+"\x00"+options.IdempotencyKey)).String()
}

func isNotFound(err error) bool {
	var known *lifecycle.Error
	return errors.As(err, &known) && known.Kind == lifecycle.KindNotFound
}

// createdBefore returns the sandbox that an earlier request with the same key created, or an error
// of KindNotFound.
func (c *Cluster) createdBefore(ctx context.Context, id string, spec lifecycle.Spec, options lifecycle.CreateOptions) (lifecycle.Sandbox, error) {
	e, err := c.view.Fetch(ctx, id)
	switch {
	case err != nil:
		return lifecycle.Sandbox{}, err
	case e.Record.Digest != spec.Digest() || e.Record.Owner != options.Owner:
		return lifecycle.Sandbox{}, lifecycle.Conflictf("Idempotency-Key: %q was used with another request body", options.IdempotencyKey)
	}
	return e.Sandbox, nil
}

// boundedLimits returns what a sandbox gets: what the request asks for, and for the rest what the
// bounds say, or else the limits of the pods of the pool, which are there already. It returns an
// error of KindInvalid when that is more than the API key may have.
func boundedLimits(spec lifecycle.Spec, pool *v1alpha1.Pool, bounds lifecycle.Bounds) (lifecycle.ResourceLimits, error) {
	if pool == nil {
		err := bounds.Apply(&spec)
		return spec.Resources, err
	}
	spec.Resources = poolLimits(pool, spec.Resources)
	return spec.Resources, bounds.Check(spec)
}

// newBatch is the resource of a new sandbox, and its Secret. pool is nil unless it is to be one of
// a pool. It returns an error of KindInvalid for what this cluster does not offer.
func (c *Cluster) newBatch(ctx context.Context, id string, spec lifecycle.Spec, pool *v1alpha1.Pool, digest string,
	options lifecycle.CreateOptions) (*v1alpha1.BatchSandbox, *secret, error) {
	class, err := c.RuntimeClasses.Find(spec.RuntimeClass)
	if err != nil {
		return nil, nil, err
	}
	secret := newSecret(id)
	now := c.Clock().UTC()
	// The longest: until a replica has read how the sandbox ended, the controller must not remove
	// its record.
	retention := int32(max(c.TerminatedRetention, c.PendingFailureTTL) / time.Second)
	b := &v1alpha1.BatchSandbox{
		ObjectMeta: metav1.ObjectMeta{
			Name: id, Namespace: c.Namespace,
			Labels: map[string]string{view.LabelManagedBy: view.ManagedBy},
			// From the beginning: no deletion can be under way that has not seen it, and the
			// controller saves a write.
			Finalizers:  []string{v1alpha1.Finalizer},
			Annotations: map[string]string{view.AnnotationTouched: now.Format(time.RFC3339Nano), view.AnnotationSecret: secret.name},
		},
		Spec: v1alpha1.BatchSandboxSpec{Replicas: 1, TTLSecondsAfterFinished: &retention},
	}
	if timeout := int32(c.ProvisionTimeout / time.Second); timeout > 0 {
		b.Spec.ProvisionTimeoutSeconds = &timeout
	}
	view.SetExpiry(b, now.Add(spec.Timeout))
	err = errors.Join(
		view.Annotate(b, view.AnnotationRecord, view.Record{
			Owner: options.Owner, Image: spec.Image, Entrypoint: spec.Entrypoint, CreatedAt: now, Extensions: spec.Extensions, Digest: digest,
			RuntimeClass: spec.RuntimeClass, Resources: spec.Resources, Lives: spec.Timeout,
		}),
		view.Annotate(b, view.AnnotationMetadata, spec.Metadata),
	)
	if spec.Lifecycle != nil {
		err = errors.Join(err, setLifecycle(b, *spec.Lifecycle, spec.Timeout, options.Bounds.MaxTimeout))
	}
	if spec.NetworkPolicy != nil {
		err = errors.Join(err, view.Annotate(b, view.AnnotationPolicy, spec.NetworkPolicy))
	}
	if err != nil {
		return nil, nil, err
	}
	if err := checkAnnotations(b); err != nil {
		return nil, nil, err
	}
	token := lifecycle.NewToken()
	if pool != nil {
		err = c.fromPool(ctx, b, pool, spec, options, class, token, secret)
	} else {
		b.Spec.Template, err = c.template(spec, class, token, secret)
	}
	if err == nil {
		err = checkSpec(b, len(spec.Env))
	}
	return b, secret, err
}

// poolOf returns the pool in the extensions, nil when the sandbox gets a pod of its own.
func (c *Cluster) poolOf(ctx context.Context, extensions []byte) (*v1alpha1.Pool, error) {
	name, err := poolName(extensions)
	if err != nil || name == "" {
		return nil, err
	}
	return c.findPool(ctx, name)
}

func poolName(extensions []byte) (string, error) {
	if extensions == nil {
		return "", nil
	}
	var known struct {
		PoolRef json.RawMessage `json:"poolRef"`
	}
	if json.Unmarshal(extensions, &known) != nil || known.PoolRef == nil {
		return "", nil
	}
	var name string
	if json.Unmarshal(known.PoolRef, &name) != nil || !isResourceName(name) {
		return "", lifecycle.Invalidf("extensions.poolRef: must be the name of a Pool: at most 253 lower-case letters, digits, '-' and '.', got %.300s", known.PoolRef)
	}
	return name, nil
}

// fromPool makes the sandbox the claim of a pod of a pool. What the pod is follows from the pool,
// so what the client asks for has to be that.
func (c *Cluster) fromPool(ctx context.Context, b *v1alpha1.BatchSandbox, pool *v1alpha1.Pool, spec lifecycle.Spec, options lifecycle.CreateOptions, class lifecycle.RuntimeClass,
	token string, secret *secret) error {
	limits, err := fits(pool, spec, class, c.resizes)
	if err != nil {
		return err
	}
	if err := c.checkPoolClaims(ctx, pool, options); err != nil {
		return err
	}
	b.Spec.PoolRef = pool.Name
	// The Pool may change before the sandbox has its pod, and while it does there are pods of two
	// templates.
	b.Annotations[v1alpha1.AnnotationRequires] = v1alpha1.Provides(pool.Spec.Template)
	b.Spec.Claim = &v1alpha1.Claim{
		Container:  v1alpha1.WaitingContainer(&pool.Spec.Template.Spec).Name,
		Entrypoint: spec.Entrypoint,
		Limits:     limits,
		Egress:     v1alpha1.EgressSidecar(&pool.Spec.Template.Spec) != nil,
		Token:      secret.reference(view.EntryExecdToken, token),
	}
	if b.Spec.Claim.NetworkPolicy, err = c.policyOfClaim(spec.NetworkPolicy); err != nil {
		return err
	}
	for i, name := range sortedKeys(spec.Env) {
		b.Spec.Claim.Env = append(b.Spec.Claim.Env, secret.claimVariable(name, entryVariable+strconv.Itoa(i), spec.Env[name]))
	}
	return nil
}

// findPool returns a pool that gives pods.
func (c *Cluster) findPool(ctx context.Context, name string) (*v1alpha1.Pool, error) {
	ctx, cancel := context.WithTimeout(ctx, view.CallTimeout)
	defer cancel()
	var pool v1alpha1.Pool
	err := c.api.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: name}, &pool)
	switch {
	case apierrors.IsNotFound(err):
		return nil, lifecycle.Invalidf("extensions.poolRef: there is no Pool %q in the namespace of the sandboxes", name)
	case err != nil:
		return nil, view.Explain(err)
	case pool.DeletionTimestamp != nil:
		return nil, lifecycle.Invalidf("extensions.poolRef: Pool %q is being deleted and gives no more pods", name)
	case pool.Spec.CapacitySpec.PoolMax < 1:
		return nil, lifecycle.Invalidf("extensions.poolRef: Pool %q gives no pods: its spec.capacitySpec.poolMax is 0", name)
	case pool.Spec.UnknownField != "":
		return nil, lifecycle.Invalidf("extensions.poolRef: Pool %q cannot be used: spec.%s", name, pool.Spec.UnknownField)
	}
	return &pool, nil
}
