// What the state of a sandbox permits.

/** ended reports whether a sandbox is over. */
export const ended = (state) => state === 'Terminated' || state === 'Failed';

/** unusable says why nothing can be run in a sandbox, null when it can. */
export function unusable({ status: { state } }) {
  switch (state) {
    case 'Running': return null;
    case 'Paused': return 'The sandbox is Paused. Resume it to go on.';
    case 'Pending': return 'The sandbox is Pending: it is being provisioned.';
    default: return `The sandbox is ${state}.`;
  }
}
