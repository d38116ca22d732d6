// A part that cannot be rendered shows its error; the rest of the page stays.

import { Component, type ReactNode } from "react";

interface GuardProps {
  /** The rendered value: another value is tried again. */
  of: unknown;
  /** The replacement. */
  instead: (error: unknown) => ReactNode;
  children: ReactNode;
}

interface State {
  failure: { error: unknown } | null;
  of: unknown;
}

export class Guard extends Component<GuardProps, State> {
  override state: State = { failure: null, of: this.props.of };

  static getDerivedStateFromError(error: unknown): Partial<State> {
    return { failure: { error } };
  }

  static getDerivedStateFromProps({ of }: GuardProps, state: State): State | null {
    return of === state.of ? null : { failure: null, of };
  }

  override render(): ReactNode {
    return this.state.failure === null ? this.props.children : this.props.instead(this.state.failure.error);
  }
}
