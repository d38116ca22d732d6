export default function TeamPage({ team }: { team: string | null }) { return <div className="page"><h1>{team}</h1></div>; }
